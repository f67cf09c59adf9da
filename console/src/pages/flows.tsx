// The flow as it runs: its graph, what waits where, what holds it up, and how it is changed.
import { signal } from "@preact/signals";
import type { JSX } from "preact";

import type { Bulletins, FlowSummary } from "../answers";
import { withParams } from "../api";
import { keep, kept } from "../browser_memory";
import { count, time } from "../format";
import { useLive, useLiveKept } from "../live";
import { ManualLink } from "../manual";
import { place, setParams } from "../router";
import { Answer, Card, ErrorBox, Figure, Search, State, Table } from "../ui";
import { RunActions } from "./flow_actions";
import { ComponentCard } from "./flow_component";
import { QueueCard } from "./flow_queue";
import { FlowView, linkTo } from "./flow_view";
import { YamlCard } from "./flow_yaml";

const BUTTONS = 40;
const CLOSED_BUTTONS = 8;
const BULLETINS = 50;
const BULLETINS_READ = 200; // each has up to 2,000 characters
const OPEN = "flow-open";
const OPEN_MAX = 600; // six kilobytes of an address

/** The groups that this tab has opened; none yet: the server opens all of a small flow. */
const open = signal<string[] | undefined>(openBefore());

function openBefore(): string[] | undefined {
  const found = kept(OPEN, "tab");
  return Array.isArray(found) ? found.map(String) : undefined;
}

function setOpen(groups: string[]): void {
  open.value = groups.slice(-OPEN_MAX);
  keep(OPEN, open.value, "tab");
}

/** The CRC-32 of a path: URLs of a hundred paths would be longer than proxies accept. */
function keyOf(path: string): string {
  let crc = -1;
  for (const byte of new TextEncoder().encode(path)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320);
  }
  return `${(~crc >>> 0).toString(16)}.`;
}

export function Flows(): JSX.Element {
  const search = place.value.params.get("search") ?? "";
  const openKeys = open.value && (open.value.map(keyOf).join("") || ".");
  const status = useLiveKept<FlowSummary>(withParams("/flow/status", { summary: true, openKeys, search }));
  const bulletins = useLive<Bulletins>(withParams("/flow/bulletins", { limit: BULLETINS_READ }));
  return (
    <>
      <h1>Flow{status.value && status.value.name !== "flow" ? ` ${status.value.name}` : ""}</h1>
      <Answer live={status}>
        {(found) => (
          <Parts status={found} at={status.at} bulletins={bulletins.value?.bulletins ?? []} search={search} />
        )}
      </Answer>
    </>
  );
}

function Parts({
  status,
  at,
  bulletins,
  search,
}: {
  status: FlowSummary;
  at: number;
  bulletins: Bulletins["bulletins"];
  search: string;
}): JSX.Element {
  const { params } = place.value;
  const part = params.get("part") ?? "";
  const queue = params.get("queue") ?? "";
  const group = params.get("group") ?? "";
  const isEmpty = status.totals.components === 0;
  const isYaml = params.get("view") === "yaml";
  return (
    <div class={`grid ${isYaml ? "beside" : ""}`}>
      <Card title="Graph" wide>
        {isEmpty ? (
          <p class="quiet">
            No flow is applied. <ManualLink path="docs/reference/flow-files.html">Write one</ManualLink> under <em>YAML</em>, or run
            <code> penstock flow apply FILE --start</code>.
          </p>
        ) : (
          <Totals status={status} />
        )}
        <div class="bar">
          {!isEmpty && (
            <>
              <Search label="find a component" value={search} onChange={(text) => setParams({ search: text })} />
              <RunActions about="the whole flow" />
            </>
          )}
          <button
            type="button"
            aria-pressed={isYaml}
            onClick={() => setParams({ view: isYaml ? undefined : "yaml" })}
          >
            YAML
          </button>
        </div>
        {!isEmpty && (
          <>
            <Groups status={status} />
            {status.held.length > 0 && (
              <ErrorBox
                error={
                  new Error(
                    "The process of the flow kept ending, so these were not started: " +
                      `${status.held.join(", ")}. See the log for the reason, stop or correct the component ` +
                      "that ends it, and start the others.",
                  )
                }
              />
            )}
            {search !== "" && <Found status={status} />}
            {status.omitted > 0 && (
              <p class="quiet">
                {count(status.omitted)} more components and groups are not drawn: close groups, or write a part of a
                name above.
              </p>
            )}
            <FlowView
              status={status}
              at={at}
              search={search}
              failed={bulletins}
              selected={part || queue || group}
              onGroup={(path) => {
                toggle(status, path);
                setParams({ group: path, part: undefined, queue: undefined });
              }}
            />
          </>
        )}
      </Card>
      {isYaml && <YamlCard revision={status.revision} name={status.name} />}
      {part !== "" && (
        <ComponentCard
          key={part}
          id={part}
          known={status.components.find((one) => one.id === part)}
          isCause={status.causes.includes(part)}
        />
      )}
      {queue !== "" && <QueueCard key={queue} id={queue} />}
      {group !== "" && <GroupCard key={group} status={status} path={group} />}
      {!isEmpty && (
        <Card title="Warnings and errors" wide>
          <Table
            caption="warnings and errors of components"
            rows={bulletins.slice(-BULLETINS).reverse()}
            keyOf={(one) => String(one.number)}
            none="There is none."
            columns={[
              { title: "when", cell: (one) => time(Date.parse(one.time)) },
              { title: "level", cell: (one) => one.level.toLowerCase(), extra: true },
              {
                title: "component",
                cell: (one) =>
                  one.component && (
                    <a href={linkTo({ part: one.component })}>{one.name || one.component}</a>
                  ),
              },
              { title: "text", cell: (one) => one.message },
            ]}
          />
        </Card>
      )}
    </div>
  );
}

function Totals({ status: { totals } }: { status: FlowSummary }): JSX.Element {
  return (
    <dl class="figures">
      <Figure label="components" value={count(totals.components)} />
      <Figure label="running" value={count(totals.states["running"] ?? 0)} />
      {(totals.states["stopping"] ?? 0) > 0 && <Figure label="stopping" value={count(totals.states["stopping"])} />}
      <Figure label="FlowFiles in queues" value={count(totals.queued)} />
      <Figure
        label="full queues"
        value={totals.full > 0 ? <State tone="bad">{count(totals.full)}</State> : count(0)}
      />
      {totals.penalized > 0 && <Figure label="penalized" value={count(totals.penalized)} />}
      {totals.causes > 0 && <Figure label="hold others up" value={count(totals.causes)} />}
    </dl>
  );
}

/** Opens a group that is drawn closed, or closes one that is drawn open.
 *
 * Other groups stay as they were wanted last: the answer that is drawn may be older than that.
 */
function toggle(status: FlowSummary, group: string): void {
  const others = (open.value ?? status.openGroups).filter((one) => one !== group);
  setOpen(status.openGroups.includes(group) ? others : [...others, group]);
}

/** Buttons that open and close groups, for those who do not use the picture. */
function Groups({ status }: { status: FlowSummary }): JSX.Element | null {
  if (status.openGroups.length + status.groups.length === 0) return null;
  return (
    <div class="bar">
      {status.openGroups.slice(0, BUTTONS).map((group) => (
        <span key={group} class="pair">
          <button type="button" aria-pressed={true} onClick={() => toggle(status, group)}>
            close {group}
          </button>
          <a href={linkTo({ group })} aria-label={`actions for the group ${group}`}>
            actions
          </a>
        </span>
      ))}
      {status.groups.slice(0, CLOSED_BUTTONS).map(({ path }) => (
        <button key={path} type="button" aria-pressed={false} onClick={() => toggle(status, path)}>
          open {path}
        </button>
      ))}
      {status.groups.length > CLOSED_BUTTONS && (
        <span class="quiet">choose one of {count(status.groups.length)} groups in the picture to open it</span>
      )}
    </div>
  );
}

function GroupCard({ status, path }: { status: FlowSummary; path: string }): JSX.Element {
  const closed = status.groups.find((one) => one.path === path);
  const isOpen = status.openGroups.includes(path);
  return (
    <Card title={`Group ${path}`} wide>
      {closed && (
        <dl class="figures">
          <Figure label="components" value={count(closed.components)} />
          {Object.entries(closed.states).map(([state, components]) => (
            <Figure key={state} label={state} value={count(components)} />
          ))}
          <Figure label="waiting in it" value={count(closed.queued)} />
          <Figure label="failed runs" value={count(closed.failures)} />
        </dl>
      )}
      <div class="bar">
        <RunActions target={path} about={`the group ${path}`} />
        {(isOpen || closed) && (
          <button type="button" aria-pressed={isOpen} onClick={() => toggle(status, path)}>
            {isOpen ? "close" : "open"}
          </button>
        )}
      </div>
    </Card>
  );
}

/** Components with a text in their name, also those in closed groups. */
function Found({ status }: { status: FlowSummary }): JSX.Element {
  return (
    <p role="status">
      {status.found.length === 0 && <span class="quiet">No component has this in its name.</span>}
      {status.found.map((one, index) => (
        <span key={one.id}>
          {index > 0 && ", "}
          <a href={linkTo({ part: one.id })}>{one.name}</a>
        </span>
      ))}
    </p>
  );
}
