// Retention rules of a datasource or of all: what they are, and what others would drop.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Action } from "../actions";
import type { RetentionRule, RulesPreview } from "../answers";
import { call, check, get } from "../api";
import { count, exactly, intervalText, size } from "../format";
import { useAsked, useNewest } from "../newest";
import { ErrorBox, Table } from "../ui";

const RULES = "/druid/coordinator/v1/rules";
const ALL = "_default";
const REST_MS = 300;
const SHOWN = 10;

const TYPES: [string, string][] = [
  ["loadForever", "keep everything"],
  ["loadByPeriod", "keep the last"],
  ["loadByInterval", "keep the interval"],
  ["dropBeforeByPeriod", "drop what is older than"],
  ["dropByPeriod", "drop the last"],
  ["dropByInterval", "drop the interval"],
  ["dropForever", "drop everything"],
];

const rulesPath = (name: string): string => `${RULES}/${encodeURIComponent(name)}`;

function valueOf(rule: RetentionRule): "period" | "interval" | undefined {
  if (rule.type.endsWith("ByPeriod")) return "period";
  return rule.type.endsWith("ByInterval") ? "interval" : undefined;
}

/** The rule with another type: it keeps the fields that both have. */
function retyped(rule: RetentionRule, type: string): RetentionRule {
  const { period, interval, includeFuture, ...rest } = rule;
  const made: RetentionRule = { ...rest, type };
  if (type.endsWith("ByPeriod")) made.period = period ?? "P30D";
  if (type.endsWith("ByInterval")) made.interval = interval ?? "2026-01-01/2027-01-01";
  if (includeFuture !== undefined && /^(load|drop|broadcast)ByPeriod$/.test(type)) made.includeFuture = includeFuture;
  // Only rules that keep say on how many servers.
  if (type.startsWith("drop")) delete (made as { tieredReplicants?: unknown }).tieredReplicants;
  if (type === "dropBeforeByPeriod")
    delete (made as { useDefaultTierForNull?: unknown }).useDefaultTierForNull;
  return made;
}

export function Retention({ name, onChange }: { name: string; onChange: () => void }): JSX.Element {
  const [stored, setStored] = useState<RetentionRule[]>();
  const [draft, setDraft] = useState<RetentionRule[]>([]);
  const [error, setError] = useState<Error>();
  const loads = useNewest();
  const load = (): void => {
    void loads.ask(
      (signal) => get<RetentionRule[]>(rulesPath(name), signal),
      (found) => {
        setStored(found);
        setDraft(found);
        setError(undefined);
      },
      setError,
    );
  };
  useEffect(load, [name]);
  // What the server says about the rules as they are typed.
  const path = `/penstock/v1/datasources/${encodeURIComponent(name)}/rules/preview`;
  const { value: preview, error: problem } = useAsked<RulesPreview>(
    stored && `${name} ${JSON.stringify(draft)}`,
    (signal) => check("POST", path, {}, signal, draft),
    REST_MS,
  );
  if (error) return <ErrorBox error={error} />;
  if (stored === undefined) return <p class="quiet">waiting for the server …</p>;
  const isChanged = JSON.stringify(stored) !== JSON.stringify(draft);
  const set = (at: number, rule: RetentionRule): void =>
    setDraft(draft.map((one, index) => (index === at ? rule : one)));

  async function save(): Promise<string> {
    const now = await get<RetentionRule[]>(rulesPath(name));
    if (JSON.stringify(now) !== JSON.stringify(stored))
      throw new Error("the rules were changed meanwhile, in another tab or by somebody else: load them again");
    const saved = await call<RetentionRule[]>("POST", rulesPath(name), draft);
    loads.end();
    setStored(saved);
    setDraft(saved);
    onChange();
    return "saved: they are applied within seconds";
  }

  return (
    <>
      <p class="quiet">
        The first rule that matches a segment decides. What no rule matches{" "}
        {name === ALL ? "is kept." : "follows the rules of all datasources."}
      </p>
      <ol class="rules">
        {draft.map((rule, at) => (
          <RuleRow
            key={at}
            rule={rule}
            at={at}
            set={(changed) => set(at, changed)}
            remove={() => setDraft(draft.filter((_, index) => index !== at))}
            up={() => setDraft(draft.map((one, index) => (index === at - 1 ? rule : index === at ? (draft[at - 1] ?? one) : one)))}
          />
        ))}
      </ol>
      {draft.length === 0 && <p class="quiet">There is no rule.</p>}
      <div class="bar">
        <button type="button" onClick={() => setDraft([...draft, { type: "loadForever" }])}>
          add a rule
        </button>
        <button type="button" onClick={load}>
          load them again
        </button>
        <Action
          label="save the rules"
          about={name === ALL ? "of all datasources" : `of ${name}`}
          disabled={!isChanged || preview === undefined}
          hint={isChanged ? "It marks the segments below as unused." : "Nothing has changed."}
          run={save}
          confirm={{
            question: name === ALL ? "Set the rules of all datasources?" : `Set the rules of ${name}?`,
            lost: () => (preview === undefined ? null : <Preview found={preview} />),
          }}
        />
      </div>
      <h3>What they drop now</h3>
      {problem && <ErrorBox error={problem} />}
      {preview === undefined ? (
        problem === undefined && <p class="quiet">waiting for the server …</p>
      ) : (
        <Preview found={preview} />
      )}
    </>
  );
}

function Preview({ found }: { found: RulesPreview }): JSX.Element {
  const { dropped, kept, intervals } = found;
  if (dropped.segments === 0)
    return (
      <p>
        Nothing is dropped. {exactly(kept.segments, "segment")} with {exactly(kept.rows, "row")} stay.
      </p>
    );
  return (
    <>
      <p>
        <b>{exactly(dropped.segments, "segment")}</b> with <b>{exactly(dropped.rows, "row")}</b>,{" "}
        {size(dropped.bytes)}, become unused: queries no longer see them. {exactly(kept.segments, "segment")} with{" "}
        {exactly(kept.rows, "row")} stay.
      </p>
      <Table
        caption="intervals that are dropped"
        rows={intervals.slice(0, SHOWN)}
        keyOf={(one) => `${one.datasource} ${one.interval}`}
        none=""
        columns={[
          { title: "datasource", cell: (one) => one.datasource, extra: true },
          { title: "interval", cell: (one) => intervalText(one.interval) },
          { title: "segments", cell: (one) => count(one.segments), right: true },
          { title: "rows", cell: (one) => count(one.rows), right: true },
          { title: "size", cell: (one) => size(one.bytes), right: true, extra: true },
        ]}
      />
      {found.intervalCount > SHOWN && <p class="quiet">The first of {count(found.intervalCount)} intervals.</p>}
    </>
  );
}

function RuleRow({
  rule,
  at,
  set,
  remove,
  up,
}: {
  rule: RetentionRule;
  at: number;
  set: (rule: RetentionRule) => void;
  remove: () => void;
  up: () => void;
}): JSX.Element {
  const field = valueOf(rule);
  const isKnown = TYPES.some(([type]) => type === rule.type);
  return (
    <li class="bar">
      <select
        aria-label={`rule ${at + 1}`}
        value={rule.type}
        onChange={(event) => set(retyped(rule, event.currentTarget.value))}
      >
        {!isKnown && <option value={rule.type}>{rule.type}</option>}
        {TYPES.map(([type, text]) => (
          <option key={type} value={type}>
            {text}
          </option>
        ))}
      </select>
      {field !== undefined && (
        <input
          aria-label={`${field} of rule ${at + 1}`}
          placeholder={field === "period" ? "P30D" : "2026-01-01/2027-01-01"}
          value={rule[field] ?? ""}
          onInput={(event) => set({ ...rule, [field]: event.currentTarget.value })}
        />
      )}
      {/^(load|drop)ByPeriod$/.test(rule.type) && (
        <label>
          <input
            type="checkbox"
            checked={rule.includeFuture ?? true}
            onChange={(event) => set({ ...rule, includeFuture: event.currentTarget.checked })}
          />{" "}
          and the future
        </label>
      )}
      {at > 0 && (
        <button type="button" aria-label={`move rule ${at + 1} up`} onClick={up}>
          ↑
        </button>
      )}
      <button type="button" aria-label={`remove rule ${at + 1}`} onClick={remove}>
        remove
      </button>
    </li>
  );
}
