// Offsets of a supervisor that a user chooses: continue there, or read a range again beside it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action } from "../actions";
import type { Offsets, SupervisorPayload, TopicOffsets } from "../answers";
import { call, get, withParams } from "../api";
import { count, exactly } from "../format";
import { link } from "../router";
import { ErrorBox, Table } from "../ui";

const SUPERVISORS = "/druid/indexer/v1/supervisor";
const PARTITIONS_SHOWN = 100;

/** What a move of the committed offsets means, in messages. */
export interface Moved {
  again: number;
  skipped: number;
}

/** Returns how many messages are read again or skipped if reading continues at these offsets. */
export function moved(committed: Offsets, to: Offsets): Moved {
  let again = 0;
  let skipped = 0;
  for (const [partition, offset] of Object.entries(to)) {
    const at = committed[partition] ?? offset;
    again += Math.max(0, at - offset);
    skipped += Math.max(0, offset - at);
  }
  return { again, skipped };
}

/** Where a supervisor continues when its offsets are forgotten. */
export function afterReset(found: SupervisorPayload): Offsets {
  if (found.boundedOffsets !== undefined)
    return Object.fromEntries(Object.entries(found.boundedOffsets).map(([name, [start]]) => [name, start]));
  return (found.useEarliestOffset ? found.earliestOffsets : found.latestOffsets) ?? {};
}

export function MovedText({ change }: { change: Moved }): JSX.Element {
  return (
    <ul>
      <li>
        {change.again === 0
          ? "No published message is read again."
          : `${count(change.again)} published messages are read again: their rows are in the datasource twice.`}
      </li>
      <li>
        {change.skipped === 0
          ? "No message is skipped."
          : `${count(change.skipped)} messages that are not published are skipped: their rows are missing.`}
      </li>
      <li>
        Its running tasks end without a publish. The supervisor reads their messages again, if they
        are not skipped.
      </li>
    </ul>
  );
}

/** Returns the whole numbers of a form by partition. Throws with the place of one that is none. */
function numbers(texts: Record<string, string>, what: string): Offsets {
  const found: Offsets = {};
  for (const [partition, text] of Object.entries(texts)) {
    if (text.trim() === "") continue;
    if (!/^[0-9]{1,15}$/.test(text.trim()))
      throw new Error(`${what} of partition ${partition}: ${text} is not an offset, a whole number`);
    found[partition] = Number(text.trim());
  }
  return found;
}

export function OffsetsForm({ id, found }: { id: string; found: SupervisorPayload }): JSX.Element {
  const [from, setFrom] = useState<Record<string, string>>({});
  const [until, setUntil] = useState<Record<string, string>>({});
  const [times, setTimes] = useState<[string, string]>(["", ""]);
  const partitions = Object.keys(found.latestOffsets ?? {});
  const committed = found.committedOffsets ?? {};
  const own = `${SUPERVISORS}/${encodeURIComponent(id)}`;
  let starts: Offsets = {};
  let ends: Offsets = {};
  let wrong: Error | undefined;
  try {
    starts = numbers(from, "from");
    ends = numbers(until, "until");
  } catch (error) {
    wrong = error as Error;
  }
  const chosen = Object.keys(starts);
  const ranges = Object.fromEntries(
    chosen.map((name) => [name, [starts[name] ?? 0, ends[name] ?? found.latestOffsets?.[name] ?? 0]]),
  ) as Record<string, [number, number]>;
  const inRanges = Object.values(ranges).reduce((sum, [start, end]) => sum + Math.max(0, end - start), 0);
  const twice = Object.entries(ranges).reduce((sum, [name, [start, end]]) => {
    const published = Math.min(end, committed[name] ?? start);
    return sum + Math.max(0, published - start);
  }, 0);

  async function find(): Promise<string> {
    const [first, last] = times.map((text) => (text === "" ? undefined : utc(text)));
    if (first === undefined) throw new Error("specify the time from which to read");
    const [starts, ends] = await Promise.all(
      [first, last].map((at) => (at === undefined ? {} : offsetsAt(found.stream ?? "", at))),
    );
    setFrom(starts ?? {});
    setUntil(ends ?? {});
    return "the offsets of these times are in the table";
  }

  const field = (
    name: string,
    partition: string,
    texts: Record<string, string>,
    set: (texts: Record<string, string>) => void,
  ): JSX.Element => (
    <input
      class="offset"
      inputMode="numeric"
      aria-label={`${name} offset of partition ${partition}`}
      value={texts[partition] ?? ""}
      onInput={(event) => set({ ...texts, [partition]: event.currentTarget.value })}
    />
  );
  return (
    <>
      <Table
        caption="stream partitions"
        rows={partitions.slice(0, PARTITIONS_SHOWN)}
        keyOf={(partition) => partition}
        none="The offsets are not known yet."
        columns={[
          { title: "partition", cell: (one) => one },
          { title: "first", cell: (one) => count(found.earliestOffsets?.[one]), right: true, extra: true },
          { title: "published up to", cell: (one) => count(committed[one]), right: true },
          { title: "newest", cell: (one) => count(found.latestOffsets?.[one]), right: true },
          { title: "from", cell: (one) => field("from", one, from, setFrom) },
          { title: "until", cell: (one) => field("until", one, until, setUntil) },
        ]}
      />
      {partitions.length > PARTITIONS_SHOWN && (
        <p class="quiet">
          The first {count(PARTITIONS_SHOWN)} of {count(partitions.length)} partitions. Choose a time
          to fill in the offsets of all.
        </p>
      )}
      {found.type === "penstock" && (
        <div class="bar">
          <label>
            from the time (UTC){" "}
            <input
              placeholder="2026-11-29 14:00"
              value={times[0]}
              onInput={(event) => setTimes([event.currentTarget.value, times[1]])}
            />
          </label>
          <label>
            until{" "}
            <input
              placeholder="now"
              value={times[1]}
              onInput={(event) => setTimes([times[0], event.currentTarget.value])}
            />
          </label>
          <Action label="find their offsets" run={find} />
        </div>
      )}
      {wrong && <ErrorBox error={wrong} />}
      <div class="bar">
        <Action
          label="continue at “from”"
          disabled={chosen.length === 0 || wrong !== undefined}
          hint="Reading continues at these offsets; partitions without one go on where they are."
          run={async () => {
            await call("POST", `${own}/resetOffsets`, {
              partitions: { type: "end", partitionOffsetMap: starts },
            });
            return "it continues at these offsets";
          }}
          confirm={{
            question: `Have ${id} continue at these offsets?`,
            lost: () => <MovedText change={moved(committed, starts)} />,
          }}
        />
        <Action
          label="read from … until again"
          disabled={chosen.length === 0 || wrong !== undefined}
          hint="A second supervisor reads the range and ends; this one goes on."
          run={async () => {
            const made = await call<{ backfillSupervisorId: string }>(
              "POST",
              `/penstock/v1/supervisors/${encodeURIComponent(id)}/backfill`,
              { partitionOffsetRanges: ranges },
            );
            return `supervisor ${made.backfillSupervisorId} reads them`;
          }}
          confirm={{
            question: `Read ${exactly(inRanges, "message")} beside ${id}?`,
            lost: () => (
              <>
                <p>A second supervisor reads them, then ends. This one goes on.</p>
                <p>
                  {twice === 0
                    ? "None of them is published yet."
                    : `${count(twice)} of them are published: their rows are in the datasource twice, unless you mark the segments that have them as unused before.`}{" "}
                  <a href={link(["datasources", found.dataSource])}>segments of {found.dataSource}</a>
                </p>
              </>
            ),
          }}
        />
      </div>
    </>
  );
}

/** Returns a time of a user as epoch ms. Throws if it is none. */
function utc(text: string): number {
  const trimmed = text.trim();
  const hasZone = /(Z|[+-]\d\d:?\d\d)$/.test(trimmed);
  const at = Date.parse(hasZone ? trimmed : `${trimmed.replace(" ", "T")}${trimmed.length > 10 ? "Z" : ""}`);
  if (!Number.isFinite(at)) throw new Error(`${text} is not a time: write 2026-11-29 14:00`);
  return at;
}

async function offsetsAt(topic: string, at: number): Promise<Record<string, string>> {
  const path = withParams("/penstock/v1/broker/offsets", { topic, timestamp: at });
  const found = await get<TopicOffsets>(path);
  return Object.fromEntries(found.partitions.map((one) => [String(one.partition), String(one.offset)]));
}
