// Topics, their channels, and their messages.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import type { BrokerStatistics, Channel, Topic, TopicList, TopicRow } from "../answers";
import { BROKER, withParams } from "../api";
import { count, short, size, time } from "../format";
import { useLive } from "../live";
import { useRates } from "../rates";
import { link, place, setParams } from "../router";
import { Answer, Card, Figure, Pager, Search, State, Table, type Column } from "../ui";
import { Messages } from "./messages";
import { ChannelActions, CreateTopic, Publish, Replay, TopicActions, type Published } from "./topic_actions";

const LIMIT = 50;
const ORDERS: [string, string][] = [
  ["name", "name"],
  ["messages", "messages"],
  ["depth", "waiting"],
  ["in_flight", "in flight"],
  ["bytes", "size"],
];

export function Topics({ parts }: { parts: string[] }): JSX.Element {
  const [topic] = parts;
  return topic === undefined ? <TopicsList /> : <OneTopic key={topic} name={topic} />;
}

function TopicsList(): JSX.Element {
  const params = place.value.params;
  const search = params.get("search") ?? "";
  const order = params.get("order") ?? "name";
  const skip = Number(params.get("skip") ?? 0);
  const found = useLive<TopicList>(
    withParams(`${BROKER}/stats/topics`, { search, order, skip, limit: LIMIT }),
  );
  const rates = useRates();
  const columns: Column<TopicRow>[] = [
    {
      title: "topic",
      cell: (row) => <a href={link(["topics", row.topic_name])}>{row.topic_name}</a>,
    },
    {
      title: "state",
      cell: (row) =>
        row.paused ? <State tone="warn">paused</State> : <State tone="good">runs</State>,
      extra: true,
    },
    {
      title: "per second",
      cell: (row) => short(rates(row.topic_name, row.message_count, found.value?.at ?? 0)),
      right: true,
    },
    { title: "waiting", cell: (row) => count(row.depth), right: true },
    { title: "in flight", cell: (row) => count(row.in_flight_count), right: true },
    { title: "deferred", cell: (row) => count(row.deferred_count), right: true, extra: true },
    { title: "in no channel", cell: (row) => count(row.topic_depth), right: true, extra: true },
    { title: "channels", cell: (row) => count(row.channel_count), right: true, extra: true },
    { title: "consumers", cell: (row) => count(row.client_count), right: true, extra: true },
    { title: "on disk", cell: (row) => size(row.bytes), right: true },
  ];
  return (
    <>
      <h1>Topics</h1>
      <div class="bar">
        <Search
          label="name contains"
          value={search}
          onChange={(text) => setParams({ search: text, skip: undefined })}
        />
        <label>
          sorted by{" "}
          <select
            value={order}
            onChange={(event) => setParams({ order: event.currentTarget.value, skip: undefined })}
          >
            {ORDERS.map(([value, text]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </div>
      <CreateTopic />
      <Answer live={found}>
        {(list) => (
          <>
            <dl class="figures">
              <Figure label="topics" value={count(list.topics)} />
              <Figure label="messages per second" value={short(rates("", list.message_count, list.at))} />
              <Figure label="waiting" value={count(list.depth)} />
              <Figure label="in flight" value={count(list.in_flight_count)} />
            </dl>
            <Table
              caption="topics"
              rows={list.page}
              columns={columns}
              keyOf={(row) => row.topic_name}
              none={
                search === ""
                  ? "There is no topic yet. The first event that is published creates one."
                  : "No topic has this in its name."
              }
            />
            <Pager
              skip={skip}
              limit={LIMIT}
              found={list.found}
              onSkip={(next) => setParams({ skip: next === 0 ? undefined : String(next) })}
            />
          </>
        )}
      </Answer>
    </>
  );
}

function OneTopic({ name }: { name: string }): JSX.Element {
  const live = useLive<BrokerStatistics>(
    withParams(`${BROKER}/stats`, { format: "json", topic: name, include_mem: false }),
  );
  return (
    <>
      <h1>
        <a href={link(["topics"])}>Topics</a> / {name}
      </h1>
      <Answer live={live}>
        {(found) => {
          const topic = found.topics?.[0];
          return topic === undefined ? <p>There is no topic {name}. The first message that is published to it creates it.</p> : <TopicParts topic={topic} />;
        }}
      </Answer>
    </>
  );
}

const channelColumns = (topic: string): Column<Channel>[] => [
  { title: "channel", cell: (row) => row.channel_name },
  {
    title: "state",
    cell: (row) => (row.paused ? <State tone="warn">paused</State> : <State tone="good">runs</State>),
  },
  { title: "waiting", cell: (row) => count(row.depth), right: true },
  { title: "in flight", cell: (row) => count(row.in_flight_count), right: true },
  { title: "deferred", cell: (row) => count(row.deferred_count), right: true },
  { title: "requeued", cell: (row) => count(row.requeue_count), right: true, extra: true },
  { title: "timed out", cell: (row) => count(row.timeout_count), right: true, extra: true },
  { title: "dead letters", cell: (row) => count(row.messages_dead_lettered), right: true, extra: true },
  { title: "consumers", cell: (row) => count(row.client_count), right: true },
  { title: "actions", cell: (row) => <ChannelActions topic={topic} channel={row} /> },
];

function TopicParts({ topic }: { topic: Topic }): JSX.Element {
  const [published, setPublished] = useState<Published>();
  const clients = topic.channels.flatMap((channel) =>
    (channel.clients ?? []).map((client) => ({ channel: channel.channel_name, ...client })),
  );
  const lost = topic.messages_lost + topic.channels.reduce((sum, one) => sum + one.messages_lost, 0);
  return (
    <div class="grid">
      <Card title="Topic" wide>
        <dl class="figures">
          <Figure
            label="state"
            value={topic.paused ? <State tone="warn">paused</State> : <State tone="good">runs</State>}
          />
          <Figure label="messages since the start" value={count(topic.message_count)} />
          <Figure label="in no channel" value={count(topic.depth)} />
          <Figure label="on disk" value={size(topic.partitions.reduce((sum, one) => sum + one.bytes, 0))} />
          <Figure label="refused" value={count(topic.messages_refused)} />
          <Figure label="dropped" value={count(topic.messages_dropped)} />
          <Figure label="lost" value={lost > 0 ? <State tone="bad">{count(lost)}</State> : "0"} />
          <Figure label="repeated publishes" value={count(topic.repeated_publishes)} />
        </dl>
        <TopicActions topic={topic} />
        <Publish topic={topic.topic_name} onDone={setPublished} />
      </Card>
      <Card title="Channels" wide>
        <Table
          caption="channels"
          rows={topic.channels}
          columns={channelColumns(topic.topic_name)}
          keyOf={(row) => row.channel_name}
          none="There is no channel. A consumer creates one, and gets the messages that are in no channel."
        />
        {topic.channels.length > 0 && <Replay topic={topic} />}
      </Card>
      <Card title="Stream partitions" wide>
        <Table
          caption="stream partitions"
          rows={topic.partitions}
          keyOf={(row) => String(row.partition)}
          none="There is none."
          columns={[
            { title: "partition", cell: (row) => row.partition },
            { title: "first offset", cell: (row) => count(row.earliest), right: true },
            { title: "next offset", cell: (row) => count(row.latest), right: true },
            { title: "not yet on disk", cell: (row) => count(row.unsynced_messages), right: true, extra: true },
            { title: "files", cell: (row) => count(row.log_files), right: true, extra: true },
            { title: "size", cell: (row) => size(row.bytes), right: true },
          ]}
        />
      </Card>
      <Card title="Consumers" wide>
        <Table
          caption="consumers"
          rows={clients}
          keyOf={(row) => `${row.channel} ${row.remote_address}`}
          none="No consumer is connected."
          columns={[
            { title: "channel", cell: (row) => row.channel },
            { title: "consumer", cell: (row) => row.client_id },
            { title: "address", cell: (row) => row.remote_address, extra: true },
            { title: "ready for", cell: (row) => count(row.ready_count), right: true },
            { title: "in flight", cell: (row) => count(row.in_flight_count), right: true },
            { title: "finished", cell: (row) => count(row.finish_count), right: true, extra: true },
            { title: "since", cell: (row) => time(row.connect_ts * 1_000), extra: true },
          ]}
        />
      </Card>
      <Card title="Messages" wide>
        <Messages key={topic.topic_name} topic={topic} published={published} />
      </Card>
    </div>
  );
}
