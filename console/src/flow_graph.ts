// The graph of a flow: where its nodes and edges are drawn. A worker computes it; layouts of graphs
// that were drawn before are kept, so that groups close and open again at once.
import { useEffect, useState } from "preact/hooks";

import type { FlowSummary } from "./answers";
import { address } from "./api";
import type { Layout, LayoutAnswer, LayoutRequest } from "./flow_layout";

export const NODE_WIDTH = 210;
export const NODE_HEIGHT = 74;
export const LABEL_WIDTH = 132;
export const LABEL_HEIGHT = 22;

const KEPT = 30;

export function edgeId(edge: { from: string; to: string }): string {
  return `${edge.from} > ${edge.to}`;
}

/** The ids of all that is drawn: the places change only with them, not with the numbers. */
function shapeOf(flow: FlowSummary): string {
  return [...flow.components, ...flow.groups]
    .map((one) => one.id)
    .concat(flow.edges.map(edgeId))
    .join(" ");
}

const layouts = new Map<string, Layout>();
const waiting = new Map<number, { shape: string; done: (answer: LayoutAnswer) => void }>();
let worker: Worker | undefined;
let numbers = 0;

function theWorker(): Worker {
  if (worker !== undefined) return worker;
  const made = new Worker(address("console/flow_layout.js"), { type: "module" });
  made.onmessage = (event: MessageEvent<LayoutAnswer>) => ended(event.data);
  made.onerror = () => {
    // It could not be loaded, or broke: the next graph gets a new one.
    if (worker === made) worker = undefined;
    made.terminate();
    for (const number of waiting.keys()) ended({ number, error: "the worker of the layout ended" });
  };
  worker = made;
  return made;
}

function ended(answer: LayoutAnswer): void {
  const asked = waiting.get(answer.number);
  waiting.delete(answer.number);
  if (asked === undefined) return;
  if (answer.layout !== undefined) keep(asked.shape, answer.layout);
  asked.done(answer);
}

function keep(shape: string, layout: Layout): void {
  layouts.delete(shape);
  layouts.set(shape, layout);
  const oldest = layouts.keys().next().value;
  if (layouts.size > KEPT && oldest !== undefined) layouts.delete(oldest);
}

/** Returns the layout of a flow; while a new one is computed, the one before. */
export function useLayout(flow: FlowSummary, isNarrow: boolean): { layout?: Layout; error?: Error } {
  const shape = `${isNarrow} ${shapeOf(flow)}`;
  const [found, setFound] = useState<{ layout?: Layout; error?: Error }>({});
  useEffect(() => {
    const known = layouts.get(shape);
    if (known !== undefined) {
      keep(shape, known);
      setFound({ layout: known });
      return undefined;
    }
    numbers += 1;
    const number = numbers;
    waiting.set(number, {
      shape,
      done: ({ layout, error }) =>
        setFound((before) =>
          layout !== undefined
            ? { layout }
            : { ...before, error: new Error(`the graph cannot be laid out: ${error}; reload the page`) },
        ),
    });
    const asked: LayoutRequest = {
      number,
      isNarrow,
      node: { width: NODE_WIDTH, height: NODE_HEIGHT },
      label: { width: LABEL_WIDTH, height: LABEL_HEIGHT },
      nodes: [...flow.components, ...flow.groups].map((one) => one.id),
      edges: flow.edges.map((one) => ({ id: edgeId(one), from: one.from, to: one.to })),
    };
    theWorker().postMessage(asked);
    return () => void waiting.delete(number);
  }, [shape]);
  return layouts.has(shape) ? { layout: layouts.get(shape) as Layout } : found;
}
