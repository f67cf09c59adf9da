// What the page of topics changes: topics, channels, publishes and replays.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action, pressOnEnter } from "../actions";
import type { Channel, Seek, Topic } from "../answers";
import { BROKER, post, postForHeaders, withParams } from "../api";
import { count, exactly, size } from "../format";
import { useAsked } from "../newest";
import { ErrorBox } from "../ui";
import { messageLink } from "./trace";

const stored = (topic: Topic): number =>
  topic.partitions.reduce((sum, one) => sum + one.latest - one.earliest, 0);

const consumers = (channels: Channel[]): number =>
  channels.reduce((sum, one) => sum + one.client_count, 0);

/** The tasks and programs that keep their own offsets in a topic. */
const readers = (topic: Topic): string[] => [
  ...new Set(topic.partitions.flatMap((one) => Object.keys(one.cursors))),
];

function LostMessages({ topic }: { topic: Topic }): JSX.Element {
  const others = readers(topic);
  return (
    <ul>
      <li>
        {exactly(stored(topic), "message")}, {size(topic.partitions.reduce((sum, one) => sum + one.bytes, 0))}
      </li>
      {topic.channels.map((one) => (
        <li key={one.channel_name}>
          channel {one.channel_name}: {exactly(one.depth + one.in_flight_count + one.deferred_count, "message")}{" "}
          that it has not finished
        </li>
      ))}
      {others.length > 0 && <li>read by {others.join(", ")}</li>}
    </ul>
  );
}

export function TopicActions({ topic }: { topic: Topic }): JSX.Element {
  const name = topic.topic_name;
  const change = (verb: string, more = {}): Promise<unknown> =>
    post(withParams(`${BROKER}/topic/${verb}`, { topic: name, ...more }));
  return (
    <div class="bar">
      {topic.paused ? (
        <Action label="unpause" about={`the topic ${name}`} run={() => change("unpause")} />
      ) : (
        <Action
          label="pause"
          about={`the topic ${name}`}
          hint="Its channels get no new messages; publishing continues."
          run={() => change("pause")}
        />
      )}
      <Action
        label="empty"
        about={`the topic ${name}`}
        run={() => change("empty", { purge: 1 }).then(() => "emptied")}
        confirm={{
          question: `Delete all messages of the topic ${name}?`,
          lost: () => (
            <>
              <p>The topic and its channels stay. These are lost:</p>
              <LostMessages topic={topic} />
            </>
          ),
        }}
      />
      <Action
        label="delete"
        about={`the topic ${name}`}
        run={() => change("delete")}
        confirm={{
          question: `Delete the topic ${name}?`,
          lost: () => (
            <>
              <p>
                {exactly(topic.channels.length, "channel")} with {exactly(consumers(topic.channels), "consumer")}{" "}
                {topic.channels.length === 1 ? "is" : "are"} deleted with it, and these are lost:
              </p>
              <LostMessages topic={topic} />
            </>
          ),
        }}
      />
      <CreateChannel topic={name} />
    </div>
  );
}

function CreateChannel({ topic }: { topic: string }): JSX.Element {
  const [name, setName] = useState("");
  const create = (): Promise<unknown> =>
    post(withParams(`${BROKER}/channel/create`, { topic, channel: name })).then(() => `created ${name}`);
  return (
    <span class="bar group" onKeyDown={pressOnEnter}>
      <label>
        new channel{" "}
        <input value={name} maxLength={64} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <Action label="create" about="the channel" disabled={name === ""} run={create} />
    </span>
  );
}

export function CreateTopic(): JSX.Element {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("1");
  const create = (): Promise<unknown> =>
    post(withParams(`${BROKER}/topic/create`, { topic: name, partitions })).then(() => `created ${name}`);
  return (
    <details class="form">
      <summary>create a topic</summary>
      <div class="bar" onKeyDown={pressOnEnter}>
        <label>
          name <input value={name} maxLength={64} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <label>
          stream partitions{" "}
          <input
            type="number"
            min={1}
            value={partitions}
            onInput={(event) => setPartitions(event.currentTarget.value)}
          />
        </label>
        <Action label="create" about="the topic" disabled={name === ""} run={create} />
      </div>
    </details>
  );
}

export function ChannelActions({ topic, channel }: { topic: string; channel: Channel }): JSX.Element {
  const name = channel.channel_name;
  const about = `the channel ${name}`;
  const change = (verb: string): Promise<unknown> =>
    post(withParams(`${BROKER}/channel/${verb}`, { topic, channel: name }));
  const lost = (
    <ul>
      <li>{exactly(channel.depth, "message")} that it has not delivered</li>
      <li>{exactly(channel.in_flight_count, "message")} in flight</li>
      <li>{exactly(channel.deferred_count, "deferred message")}</li>
    </ul>
  );
  return (
    <div class="bar tight">
      {channel.paused ? (
        <Action label="unpause" about={about} run={() => change("unpause")} />
      ) : (
        <Action label="pause" about={about} run={() => change("pause")} />
      )}
      <Action
        label="empty"
        about={about}
        run={() => change("empty")}
        confirm={{
          question: `Finish all messages of the channel ${name}?`,
          lost: () => (
            <>
              <p>The topic keeps its messages. The channel will not deliver these:</p>
              {lost}
            </>
          ),
        }}
      />
      <Action
        label="delete"
        about={about}
        run={() => change("delete")}
        confirm={{
          question: `Delete the channel ${name} of the topic ${topic}?`,
          lost: () => (
            <>
              <p>
                Its position is lost, and {exactly(channel.client_count, "consumer")}{" "}
                {channel.client_count === 1 ? "is" : "are"} disconnected. It will not deliver these:
              </p>
              {lost}
            </>
          ),
        }}
      />
    </div>
  );
}

/** The body of /mpub in its binary form: the number of messages, and each with its size before it. */
function batchOfOne(text: string): Blob {
  const body = new TextEncoder().encode(text);
  const head = new DataView(new ArrayBuffer(8));
  head.setUint32(0, 1);
  head.setUint32(4, body.length);
  return new Blob([head, body]);
}

/** The place of a message that this page has published. */
export interface Published {
  partition: number;
  offset: number;
}

/** Throws an Error, which is shown beside the button, unless the text is valid JSON. */
function checkJson(text: string): void {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`not published, because the message is not valid JSON: ${(error as Error).message}`);
  }
}

/** Publishes one message. */
export function Publish({
  topic,
  onDone,
}: {
  topic: string;
  onDone: (published: Published) => void;
}): JSX.Element {
  const [text, setText] = useState("");
  const [isJson, setJson] = useState(true);
  const [deferS, setDefer] = useState("");
  async function publish(): Promise<JSX.Element | string> {
    if (isJson) checkJson(text);
    const defer = deferS === "" ? undefined : Math.round(Number(deferS) * 1_000);
    // A batch of one: the answer to a single message does not name its offset.
    const headers = await (defer
      ? postForHeaders(withParams(`${BROKER}/pub`, { topic, defer }), text)
      : postForHeaders(withParams(`${BROKER}/mpub`, { topic, binary: "true" }), batchOfOne(text)));
    const at = headers.get("x-penstock-offset");
    if (at === null) return "published";
    const [partition, offset] = [Number(headers.get("x-penstock-partition")), Number(at)];
    onDone({ partition, offset });
    return (
      <>
        published at offset {count(offset)} of stream partition {partition}:{" "}
        <a href={messageLink(topic, partition, offset)}>trace</a>
      </>
    );
  }
  return (
    <details class="form">
      <summary>publish a message</summary>
      <label class="text">
        message
        <textarea rows={5} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <div class="bar">
        <label>
          <input type="checkbox" checked={isJson} onChange={(event) => setJson(event.currentTarget.checked)} />{" "}
          only if it is valid JSON
        </label>
        <label>
          deliver after{" "}
          <input
            type="number"
            min={0}
            placeholder="0"
            value={deferS}
            onInput={(event) => setDefer(event.currentTarget.value)}
          />{" "}
          seconds
        </label>
        <Action label="publish" about={`to ${topic}`} disabled={text === ""} run={publish} />
      </div>
    </details>
  );
}

/** Moves a channel to an offset or a time, after a look at what this repeats and skips. */
export function Replay({ topic }: { topic: Topic }): JSX.Element {
  const [chosen, setChannel] = useState("");
  const [to, setTo] = useState("beginning");
  const [offset, setOffset] = useState("0");
  const [partition, setPartition] = useState("0");
  const [at, setAt] = useState("");
  const channel = chosen || (topic.channels[0]?.channel_name ?? "");
  const path = (preview?: number): string =>
    withParams(`${BROKER}/channel/seek`, {
      topic: topic.topic_name,
      channel,
      to,
      preview,
      ...(to === "offset" ? { offset, partition } : {}),
      ...(to === "timestamp" ? { timestamp: Date.parse(`${at}Z`) } : {}),
    });
  async function seek(): Promise<string> {
    const found = await post<Seek>(path());
    const places = found.partitions.map((one) => count(one.offset));
    return `${channel} continues at offset ${places.join(", ")}`;
  }
  return (
    <details class="form">
      <summary>replay a channel</summary>
      <div class="bar">
        <label>
          channel{" "}
          <select value={channel} onChange={(event) => setChannel(event.currentTarget.value)}>
            {topic.channels.map((one) => (
              <option key={one.channel_name}>{one.channel_name}</option>
            ))}
          </select>
        </label>
        <label>
          to{" "}
          <select value={to} onChange={(event) => setTo(event.currentTarget.value)}>
            <option value="beginning">the beginning</option>
            <option value="offset">an offset</option>
            <option value="timestamp">a time</option>
            <option value="end">the end</option>
          </select>
        </label>
        {to === "offset" && (
          <>
            <label>
              offset{" "}
              <input type="number" min={0} value={offset} onInput={(event) => setOffset(event.currentTarget.value)} />
            </label>
            {topic.partitions.length > 1 && (
              <label>
                of stream partition{" "}
                <input
                  type="number"
                  min={0}
                  value={partition}
                  onInput={(event) => setPartition(event.currentTarget.value)}
                />
              </label>
            )}
          </>
        )}
        {to === "timestamp" && (
          <label>
            time in UTC{" "}
            <input
              type="datetime-local"
              step={1}
              value={at}
              onInput={(event) => setAt(event.currentTarget.value)}
            />
          </label>
        )}
        <Action
          label="replay"
          about={`the channel ${channel}`}
          disabled={channel === "" || (to === "timestamp" && at === "")}
          run={seek}
          confirm={{
            question: `Move the channel ${channel}?`,
            lost: () => <SeekPreview path={path(1)} />,
          }}
        />
      </div>
    </details>
  );
}

function SeekPreview({ path }: { path: string }): JSX.Element {
  const { value: found, error } = useAsked<Seek>(path, (signal) => post(path, "", signal));
  if (error) return <ErrorBox error={error} />;
  if (!found) return <p class="quiet">counting …</p>;
  const sum = (of: "repeated" | "skipped"): number =>
    found.partitions.reduce((total, one) => total + one[of], 0);
  return (
    <ul>
      <li>{exactly(sum("repeated"), "message")} that it has finished will come again</li>
      <li>{exactly(sum("skipped"), "message")} that it has not finished will be skipped</li>
      <li>messages in flight and deferred messages are delivered anew, if they are after the position</li>
    </ul>
  );
}
