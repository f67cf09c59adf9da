// Lookups: the small tables that statements and flows join by name.
import type { JSX } from "preact";

import { Action } from "../actions";
import type { LookupState, Lookups as LookupList, LookupWithSpec } from "../answers";
import { call } from "../api";
import { ago, count, exactly, size, time } from "../format";
import { useLive } from "../live";
import { useAsked } from "../newest";
import { link } from "../router";
import { SpecDetails } from "../spec_details";
import { answered } from "../sql_answers";
import { Rows } from "../sql_rows";
import { Answer, Card, ErrorBox, Figure, State, Table } from "../ui";
import { quoted } from "./datasources";

const OWN = "/penstock/v1/lookups";
const EVERY_S = 5;
const ROWS_SHOWN = 1_000;

export function Lookups({ parts }: { parts: string[] }): JSX.Element {
  const [name] = parts;
  const live = useLive<LookupList>(OWN, EVERY_S);
  if (name === undefined)
    return (
      <>
        <h1>
          <a href={link(["datasources"])}>Datasources</a> / lookups
        </h1>
        <Answer live={live}>{(found) => <Listed lookups={found.lookups} />}</Answer>
      </>
    );
  return (
    <>
      <h1>
        <a href={link(["lookups"])}>Lookups</a> / {name}
      </h1>
      <Answer live={live}>
        {({ lookups }) => {
          const found = lookups.find((one) => one.name === name);
          if (found === undefined) return <p class="quiet">There is no lookup {name} that you may read.</p>;
          return <One key={name} lookup={found} />;
        }}
      </Answer>
    </>
  );
}

const stateOf = (one: LookupState): JSX.Element =>
  one.failures > 0 ? (
    <State tone="bad">{exactly(one.failures, "refresh", "refreshes")} failed</State>
  ) : (
    <State tone="good">loaded</State>
  );

function Listed({ lookups }: { lookups: LookupState[] }): JSX.Element {
  return (
    <Table
      caption="lookups"
      rows={lookups}
      keyOf={(one) => one.name}
      none={
        <>
          There is no lookup that you may read. <code>penstock lookup apply SPEC</code> declares one.
        </>
      }
      columns={[
        { title: "lookup", cell: (one) => <a href={link(["lookups", one.name])}>{one.name}</a> },
        { title: "state", cell: stateOf },
        { title: "rows", cell: (one) => count(one.rows), right: true },
        { title: "size", cell: (one) => size(one.bytes), right: true, extra: true },
        { title: "loaded", cell: (one) => ago(Date.parse(one.loaded)), right: true },
        { title: "next refresh", cell: nextOf, extra: true },
        { title: "problem", cell: (one) => one.reason ?? "", extra: true },
      ]}
    />
  );
}

const nextOf = (one: LookupState): string => (one.nextRefresh === null ? "never" : time(Date.parse(one.nextRefresh)));

function One({ lookup }: { lookup: LookupState }): JSX.Element {
  const { name } = lookup;
  const path = `${OWN}/${encodeURIComponent(name)}`;
  const statement = `SELECT * FROM lookup.${quoted(name)} LIMIT ${ROWS_SHOWN}`;
  return (
    <div class="grid">
      <Card title="State" wide more={<a href={link(["sql"], { query: statement })}>query it</a>}>
        <dl class="figures">
          <Figure label="state" value={stateOf(lookup)} />
          <Figure label="rows" value={count(lookup.rows)} />
          <Figure label="size" value={size(lookup.bytes)} />
          <Figure label="version of the spec" value={count(lookup.version)} />
          <Figure label="spec changed" value={time(Date.parse(lookup.changed))} />
          <Figure label="rows loaded" value={time(Date.parse(lookup.loaded))} />
          <Figure label="next refresh" value={nextOf(lookup)} />
        </dl>
        {lookup.reason !== null && <ErrorBox error={new Error(lookup.reason)} />}
        <div class="bar">
          <Action
            label="refresh"
            about={name}
            hint="Reads the rows again. If that fails, they stay as they are."
            run={async () => {
              const done = await call<LookupState>("POST", `${path}/refresh`);
              return `${exactly(done.rows, "row")} loaded`;
            }}
          />
          <Action
            label="delete"
            about={name}
            run={() => call("DELETE", path)}
            confirm={{
              question: `Delete the lookup ${name}?`,
              lost: () => (
                <ul>
                  <li>
                    Its spec and its {exactly(lookup.rows, "row")} are deleted, and cannot be restored. The files that it
                    was read from stay.
                  </li>
                  <li>Statements that name it fail from then on, and FlowFiles wait in front of processors that use it.</li>
                </ul>
              ),
            }}
          />
        </div>
      </Card>
      <Card title="Rows" wide>
        <Contents statement={statement} lookup={lookup} />
      </Card>
      <Card title="Spec" wide>
        <SpecDetails path={path} version={lookup.version} specOf={(found) => (found as LookupWithSpec).spec} />
      </Card>
    </div>
  );
}

/** The first rows, read again once there are others. */
function Contents({ statement, lookup }: { statement: string; lookup: LookupState }): JSX.Element {
  const { value, error } = useAsked(`${statement} ${lookup.contentVersion}`, (signal) => answered(statement, signal));
  if (error) return <ErrorBox error={error} />;
  if (value === undefined) return <p class="quiet">reading the rows …</p>;
  return (
    <>
      <Rows result={value} />
      {lookup.rows > ROWS_SHOWN && (
        <p class="quiet">
          {count(ROWS_SHOWN)} of {count(lookup.rows)} rows.
        </p>
      )}
    </>
  );
}
