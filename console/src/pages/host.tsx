// Disk and memory of the host, and what the data folder uses.
import type { JSX } from "preact";

import type { HostResources } from "../answers";
import { size } from "../format";
import { useLive } from "../live";
import { Answer, Card, Figure, State, Table } from "../ui";

const LITTLE = 0.1;

function Free({ free, total }: { free: number; total: number }): JSX.Element {
  const text = `${size(free)} of ${size(total)}`;
  return free < LITTLE * total ? <State tone="warn">{text}</State> : <>{text}</>;
}

export function HostCard({ every }: { every: number }): JSX.Element {
  const live = useLive<HostResources>("/penstock/v1/resources", every);
  return (
    <Card title="Disk and memory">
      <Answer live={live}>
        {({ disk, parts, isComplete, memory }) => (
          <>
            <dl class="figures">
              {disk && (
                <Figure
                  label="disk that is free"
                  value={<Free free={disk.freeBytes} total={disk.totalBytes} />}
                />
              )}
              {memory && (
                <Figure
                  label="memory that is free"
                  value={<Free free={memory.availableBytes} total={memory.totalBytes} />}
                />
              )}
            </dl>
            {disk !== null && (
              <>
                <p class="quiet">
                  In the data folder{isComplete ? "" : ", at least (there are very many files)"}:
                </p>
                <Table
                  caption="use of the data folder"
                  rows={parts.slice(0, 8)}
                  keyOf={(row) => row.name}
                  none="The folder is empty."
                  columns={[
                    { title: "part", cell: (row) => row.name },
                    { title: "size", right: true, cell: (row) => size(row.bytes) },
                  ]}
                />
              </>
            )}
          </>
        )}
      </Answer>
    </Card>
  );
}
