// Step 1 of loading: where the rows are.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Action, pressOnEnter } from "./actions";
import type { Peek, PeekedMessage, TopicList } from "./answers";
import { BROKER, get, withParams } from "./api";
import { laidOutJson } from "./exact_json";
import { size } from "./format";
import { datasourceName, type Source } from "./load_spec";
import { useAsked, useNewest } from "./newest";
import { ErrorBox } from "./ui";
import { deleteUpload, listUploads, sendFile, type Upload, type Uploads } from "./upload";

type Kind = "file" | "paste" | "server" | "url" | "s3" | "topic";

const KINDS: [Kind, string][] = [
  ["file", "a file of this computer"],
  ["paste", "text to paste"],
  ["url", "a URL"],
  ["s3", "S3"],
  ["server", "a folder of the server"],
  ["topic", "a topic"],
];
const PARTITIONS_READ = 4;
const MESSAGES = 50;
const TOPICS_MAX = 200;

export function ChooseSource({ onChosen }: { onChosen: (source: Source) => void }): JSX.Element {
  const [kind, setKind] = useState<Kind>("file");
  return (
    <>
      <fieldset class="choices">
        <legend>The rows are in</legend>
        {KINDS.map(([one, text]) => (
          <label key={one}>
            <input type="radio" name="source" checked={kind === one} onChange={() => setKind(one)} /> {text}
          </label>
        ))}
      </fieldset>
      {kind === "file" && <FromFile onChosen={onChosen} />}
      {kind === "paste" && <FromPaste onChosen={onChosen} />}
      {kind === "url" && (
        <FromText
          key="url"
          label="address of the file"
          example="https://example.org/sales.csv"
          hint="Its host fetches the file once. Hosts of the own network must be listed with --reachable-hosts."
          onText={(text) => onChosen({ input: { type: "http", uris: [text] }, name: datasourceName(text) })}
        />
      )}
      {kind === "s3" && (
        <FromText
          key="s3"
          label="prefix of the objects"
          example="s3://bucket/sales/"
          hint="The keys belong to the environment of the server, or to a secret that the spec names."
          onText={(text) => onChosen({ input: { type: "s3", prefixes: [text] }, name: datasourceName(text) })}
        />
      )}
      {kind === "server" && <FromServer onChosen={onChosen} />}
      {kind === "topic" && <FromTopic onChosen={onChosen} />}
    </>
  );
}

interface Sending {
  name: string;
  bytes: number;
  sent: number;
}

function FromFile({ onChosen }: { onChosen: (source: Source) => void }): JSX.Element {
  const [known, setKnown] = useState<Uploads>();
  const [sending, setSending] = useState<Sending>();
  const [error, setError] = useState<Error>();
  const [isOver, setOver] = useState(false);
  const sends = useNewest();
  const lists = useNewest();
  const list = (): Promise<void> => lists.ask(listUploads, setKnown, setError);
  useEffect(() => void list(), []);

  async function send(files: FileList | null | undefined): Promise<void> {
    if (!files || files.length === 0) return;
    setError(undefined);
    const ended = (): void => {
      setSending(undefined);
      void list();
    };
    await sends.ask(
      (signal) => sendAll([...files], signal),
      (made) => {
        ended();
        use(made);
      },
      (failure) => {
        ended();
        setError(failure);
      },
    );
  }

  async function sendAll(files: File[], signal: AbortSignal): Promise<Upload[]> {
    const made: Upload[] = [];
    for (const file of files) {
      if (known && file.size > known.fileBytesMax)
        throw new Error(
          `${file.name} has ${size(file.size)}, and an upload up to ${size(known.fileBytesMax)}: compress it with gzip, or copy it to the server`,
        );
      signal.throwIfAborted();
      setSending({ name: file.name, bytes: file.size, sent: 0 });
      made.push(await sendFile(file, (sent) => setSending({ name: file.name, bytes: file.size, sent }), signal));
    }
    return made;
  }

  function cancel(): void {
    sends.end();
    setSending(undefined);
    setError(new Error("the upload was cancelled"));
    void list();
  }

  function use(uploads: Upload[]): void {
    onChosen({
      input: { type: "upload", uploads: uploads.map((one) => one.id) },
      name: datasourceName(uploads[0]?.name ?? ""),
    });
  }

  return (
    <>
      <label
        class={isOver ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          void send(event.dataTransfer?.files);
        }}
      >
        <span>Drop a file here, or choose one</span>
        <input
          type="file"
          multiple
          aria-label="file to load"
          disabled={sending !== undefined}
          onChange={(event) => {
            void send(event.currentTarget.files);
            event.currentTarget.value = "";
          }}
        />
        <span class="quiet">
          CSV, TSV, JSON, Parquet, ORC or Avro, also compressed with gzip or zstd
          {known && `; up to ${size(known.fileBytesMax)}`}
        </span>
      </label>
      {sending && (
        <div class="bar">
          <progress max={Math.max(sending.bytes, 1)} value={sending.sent} aria-label={`upload of ${sending.name}`} />
          <span role="status">
            {sending.name}: {size(sending.sent)} of {size(sending.bytes)}
          </span>
          <button type="button" onClick={cancel}>
            cancel
          </button>
        </div>
      )}
      {error && <ErrorBox error={error} />}
      {known && known.uploads.length > 0 && (
        <details>
          <summary>Files that you uploaded before ({known.uploads.length})</summary>
          <ul class="uploads">
            {known.uploads.map((one) => (
              <li key={one.id}>
                <span>
                  {one.name} <span class="quiet">{size(one.bytes)}</span>
                </span>
                <button type="button" aria-label={`use ${one.name}`} onClick={() => use([one])}>
                  use
                </button>
                <Action
                  label="delete"
                  about={one.name}
                  run={() => deleteUpload(one.id).then(list)}
                  confirm={{
                    question: `Delete the upload ${one.name}?`,
                    lost: () => <p>Tasks that have not read it yet will fail. Loaded rows stay.</p>,
                  }}
                />
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

function FromPaste({ onChosen }: { onChosen: (source: Source) => void }): JSX.Element {
  const [text, setText] = useState("");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onChosen({ input: { type: "inline", data: text }, name: "pasted" });
      }}
    >
      <textarea
        aria-label="rows"
        rows={8}
        class="wide mono"
        placeholder={"time,page,ms\n2026-11-21T10:00:00Z,/,12"}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div class="bar">
        <button type="submit" disabled={text.trim() === ""}>
          show the rows
        </button>
      </div>
    </form>
  );
}

function FromText({
  label,
  example,
  hint,
  onText,
}: {
  label: string;
  example: string;
  hint: string;
  onText: (text: string) => void;
}): JSX.Element {
  const [text, setText] = useState("");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onText(text.trim());
      }}
    >
      <div class="bar">
        <label class="wide">
          {label}{" "}
          <input class="wide" placeholder={example} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <button type="submit" disabled={text.trim() === ""}>
          show the rows
        </button>
      </div>
      <p class="quiet">{hint}</p>
    </form>
  );
}

function FromServer({ onChosen }: { onChosen: (source: Source) => void }): JSX.Element {
  const [folder, setFolder] = useState("");
  const [filter, setFilter] = useState("*.csv");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        const input = { type: "local", baseDir: folder.trim(), filter: filter.trim() };
        onChosen({ input, name: datasourceName(folder) });
      }}
    >
      <div class="bar">
        <label class="wide">
          folder{" "}
          <input class="wide" placeholder="/home/me/sales" value={folder} onInput={(event) => setFolder(event.currentTarget.value)} />
        </label>
        <label>
          names{" "}
          <input value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        </label>
        <button type="submit" disabled={folder.trim() === "" || filter.trim() === ""}>
          show the rows
        </button>
      </div>
      <p class="quiet">Tasks read the folders that --readable-folders allows, and never those of Penstock itself.</p>
    </form>
  );
}

function FromTopic({ onChosen }: { onChosen: (source: Source) => void }): JSX.Element {
  const [topic, setTopic] = useState("");
  const { value: topics, error } = useAsked<TopicList>("topics", (signal) =>
    get(withParams(`${BROKER}/stats/topics`, { limit: TOPICS_MAX, order: "name" }), signal),
  );
  const newest = useNewest();
  async function read(): Promise<void> {
    const signal = newest.begin();
    const text = await messagesOf(topic);
    if (signal.aborted) return; // another source was chosen meanwhile
    if (text === "") throw new Error(`${topic} has no message yet: publish one, so that its columns are known`);
    onChosen({ input: { type: "inline", data: text }, topic, name: datasourceName(topic) });
  }
  return (
    <>
      {error && <ErrorBox error={error} />}
      <div class="bar" onKeyDown={pressOnEnter}>
        <label>
          topic{" "}
          <input list="topics" value={topic} onInput={(event) => setTopic(event.currentTarget.value)} />
          <datalist id="topics">{topics?.page.map(({ topic_name: one }) => <option key={one} value={one} />)}</datalist>
        </label>
        <Action label="show the rows" run={read} disabled={topic === ""} />
      </div>
      <p class="quiet">A supervisor reads the topic from its first message, and goes on as messages arrive.</p>
    </>
  );
}

/** The newest messages of a topic, one a line. Nothing is consumed. */
async function messagesOf(topic: string): Promise<string> {
  const { page } = await get<TopicList>(withParams(`${BROKER}/stats/topics`, { search: topic, limit: TOPICS_MAX }));
  const known = page.find((one) => one.topic_name === topic);
  if (known === undefined && page.length < TOPICS_MAX) throw new Error(`there is no topic ${topic}`);
  const partitions = Math.min(known?.partitions ?? 1, PARTITIONS_READ);
  // Of several partitions, because the server estimates from the times how many messages arrive.
  const found = await Promise.all(
    Array.from({ length: partitions }, (_, partition) =>
      get<Peek>(withParams(`${BROKER}/peek`, { topic, partition, count: MESSAGES })),
    ),
  );
  const lines = found.flatMap((one) => one.messages.map(lineOf));
  return lines.filter((line) => line !== "").join("\n");
}

function lineOf(message: PeekedMessage): string {
  const body = message.body ?? "";
  try {
    return laidOutJson(body, 0);
  } catch {
    return body.replaceAll(/[\r\n]+/g, " ");
  }
}
