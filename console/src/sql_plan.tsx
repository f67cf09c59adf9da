// The plan of a query as a tree: its operators, and what each did if the query was run.
import type { JSX } from "preact";

import { count, duration, exactly, size } from "./format";

export interface PlanNode {
  operator: string;
  rows: number | null;
  ms: number | null;
  bytes: number | null;
  /** More lines about it. */
  details: string[];
  children: PlanNode[];
}

const COLUMNS = "id,parent,operator,rows,ms,bytes,metrics";
const NUMBERED = /^[\s+:|-]*(.*?) \((\d+)\)$/;
const SECTION = /^\((\d+)\) /;

/** The tree of an answer to EXPLAIN ANALYZE or EXPLAIN FORMATTED; null: it is another answer. */
export function planOf(columns: string[], rows: unknown[][]): PlanNode | null {
  if (columns.join() === COLUMNS) return measuredPlan(rows);
  const text = rows[0]?.[0];
  return columns.join() === "plan" && typeof text === "string" ? formattedPlan(text) : null;
}

function measuredPlan(rows: unknown[][]): PlanNode | null {
  const byId = new Map<unknown, PlanNode>();
  let root: PlanNode | null = null;
  for (const [id, parent, operator, found, ms, bytes, metrics] of rows) {
    const values = JSON.parse(String(metrics)) as Record<string, number>;
    const node: PlanNode = {
      operator: String(operator),
      rows: found as number | null,
      ms: ms as number | null,
      bytes: bytes as number | null,
      details: Object.entries(values).map(([name, value]) => `${name}: ${count(value)}`),
      children: [],
    };
    byId.set(id, node);
    if (parent === null) root = node;
    else byId.get(parent)?.children.push(node);
  }
  return root;
}

/** Spark indents the tree by three characters for each level, and numbers the operators. */
function formattedPlan(text: string): PlanNode | null {
  const lines = text.split("\n");
  const first = lines.findIndex((line) => line.startsWith("== Physical Plan =="));
  if (first < 0) return null;
  const byNumber = new Map<string, PlanNode>();
  const open: { indent: number; node: PlanNode }[] = [];
  let root: PlanNode | null = null;
  let at = first + 1;
  for (; at < lines.length && lines[at]?.trim() !== ""; at += 1) {
    const line = lines[at] ?? "";
    const found = NUMBERED.exec(line);
    if (found === null) return null;
    const indent = line.search(/[^\s+:|-]/);
    const operator = (found[1] ?? "").replace(/^\* /, "");
    const node: PlanNode = { operator, rows: null, ms: null, bytes: null, details: [], children: [] };
    byNumber.set(found[2] ?? "", node);
    while (open.length > 0 && (open.at(-1)?.indent ?? 0) >= indent) open.pop();
    const parent = open.at(-1)?.node;
    if (parent === undefined) root ??= node;
    else parent.children.push(node);
    open.push({ indent, node });
  }
  let section: PlanNode | undefined;
  for (const line of lines.slice(at)) {
    const found = SECTION.exec(line);
    if (found !== null) section = byNumber.get(found[1] ?? "");
    else if (line.trim() !== "") section?.details.push(line);
  }
  return root;
}

/** The longest time of an operator, for the length of bars. */
function longest(node: PlanNode): number {
  return Math.max(node.ms ?? 0, ...node.children.map(longest));
}

export function Plan({ root }: { root: PlanNode }): JSX.Element {
  return (
    <div class="card plan" role="region" aria-label="plan of the query" tabIndex={0}>
      <ul>
        <Operator node={root} longestMs={longest(root)} />
      </ul>
      {longest(root) > 0 && (
        <p class="quiet">
          Times are sums over the tasks that Spark runs side by side. Operators that Spark compiles together have
          one time, that of WholeStageCodegen above them.
        </p>
      )}
    </div>
  );
}

function Operator({ node, longestMs }: { node: PlanNode; longestMs: number }): JSX.Element {
  const facts = [
    node.rows === null ? "" : exactly(node.rows, "row"),
    node.ms === null ? "" : duration(node.ms),
    node.bytes === null ? "" : size(node.bytes),
  ].filter((one) => one !== "");
  const line = (
    <>
      <strong>{node.operator}</strong> <span class="quiet">{facts.join(", ")}</span>{" "}
      {node.ms !== null && node.ms > 0 && (
        <meter min={0} max={longestMs} value={node.ms} aria-label={`time of ${node.operator}`} />
      )}
    </>
  );
  return (
    <li>
      {node.details.length > 0 ? (
        <details>
          <summary>{line}</summary>
          <pre>{node.details.join("\n")}</pre>
        </details>
      ) : (
        line
      )}
      {node.children.length > 0 && (
        <ul>
          {node.children.map((child, index) => (
            <Operator key={index} node={child} longestMs={longestMs} />
          ))}
        </ul>
      )}
    </li>
  );
}
