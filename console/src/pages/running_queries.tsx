// The queries that run now: of everyone, for those who may see them, otherwise one's own.
import type { JSX } from "preact";

import { Action } from "../actions";
import type { RunningQuery } from "../answers";
import { call } from "../api";
import { duration } from "../format";
import { useLive } from "../live";
import { Answer, Card, State, Table } from "../ui";

const SHOWN_CHARACTERS = 300;

export function RunningQueries(): JSX.Element {
  const live = useLive<RunningQuery[]>("/penstock/v1/queries");
  return (
    <Card title="Running queries" wide>
      <Answer live={live}>
        {(found) => (
          <Table
            caption="running queries"
            rows={found}
            keyOf={(one) => one.queryId}
            none="No query runs."
            columns={[
              { title: "who", cell: (one) => one.principal },
              {
                title: "statement",
                cell: (one) => (
                  <code title={one.statement}>
                    {one.statement.slice(0, SHOWN_CHARACTERS)}
                    {(one.isCut || one.statement.length > SHOWN_CHARACTERS) && " …"}
                  </code>
                ),
              },
              {
                title: "state",
                cell: (one) =>
                  one.state === "RUNNING" ? (
                    <State tone="busy">running</State>
                  ) : (
                    <State tone="warn">waits: {one.reason}</State>
                  ),
              },
              { title: "for", cell: (one) => duration(one.runningMs), right: true },
              {
                title: "cancel",
                cell: (one) => (
                  <Action
                    label="cancel"
                    about={`the query ${one.statement.slice(0, 60)}`}
                    run={() => call("DELETE", `/druid/v2/sql/${encodeURIComponent(one.queryId)}`)}
                  />
                ),
              },
            ]}
          />
        )}
      </Answer>
    </Card>
  );
}
