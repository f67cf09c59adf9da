// The worker that lays out the graph of a flow. It is a file of its own, so that the page goes on
// answering while a graph of hundreds of nodes is laid out.
//
// Parts of the graph that nothing connects are laid out one by one, and kept: a group that opens does
// not cost the layout of all others.
import dagre from "@dagrejs/dagre";

export interface LayoutRequest {
  number: number;
  /** Whether the graph runs from the top to the bottom, as on narrow screens. */
  isNarrow: boolean;
  node: { width: number; height: number };
  label: { width: number; height: number };
  nodes: string[];
  edges: { id: string; from: string; to: string }[];
}

export interface Point {
  x: number;
  y: number;
}

export interface Layout {
  width: number;
  height: number;
  /** The middle of each node. */
  nodes: Record<string, Point>;
  /** The corners of each edge, and the middle of its label. */
  edges: Record<string, { points: Point[]; label: Point }>;
}

export interface LayoutAnswer {
  number: number;
  layout?: Layout;
  error?: string;
}

const MARGIN = 12;
const GAP = 28;
/** Parts stand side by side up to this width; a wider one has a row of its own. */
const ROW_WIDTH = 1_160;
const KEPT = 600;

interface Part {
  nodes: string[];
  edges: LayoutRequest["edges"];
}

const kept = new Map<string, Layout>();

/** The connected parts of a graph, in the order of their first nodes. */
function partsOf({ nodes, edges }: LayoutRequest): Part[] {
  const leader = new Map(nodes.map((id) => [id, id]));
  const find = (id: string): string => {
    let at = id;
    for (let next = leader.get(at); next !== undefined && next !== at; next = leader.get(at)) at = next;
    leader.set(id, at);
    return at;
  };
  for (const { from, to } of edges) leader.set(find(from), find(to));
  const parts = new Map<string, Part>();
  for (const id of nodes) {
    const known = parts.get(find(id));
    if (known) known.nodes.push(id);
    else parts.set(find(id), { nodes: [id], edges: [] });
  }
  for (const edge of edges) parts.get(find(edge.from))?.edges.push(edge);
  return [...parts.values()];
}

function layoutOf(part: Part, asked: LayoutRequest): Layout {
  const [only] = part.nodes;
  if (only !== undefined && part.nodes.length === 1 && part.edges.length === 0) {
    const { width, height } = asked.node;
    return { width, height, nodes: { [only]: { x: width / 2, y: height / 2 } }, edges: {} };
  }
  const key = [asked.isNarrow, ...part.nodes, ...part.edges.map((one) => one.id)].join(" ");
  const found = kept.get(key) ?? laidOut(part, asked);
  kept.delete(key);
  kept.set(key, found);
  const oldest = kept.keys().next().value;
  if (kept.size > KEPT && oldest !== undefined) kept.delete(oldest);
  return found;
}

function laidOut(part: Part, asked: LayoutRequest): Layout {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: asked.isNarrow ? "TB" : "LR", nodesep: GAP, ranksep: 36, edgesep: 14 });
  for (const id of part.nodes) graph.setNode(id, { ...asked.node });
  // With their sizes, the labels get places of their own, within the picture.
  for (const edge of part.edges) graph.setEdge(edge.from, edge.to, { ...asked.label, labelpos: "c" });
  dagre.layout(graph);
  const size = graph.graph();
  const found: Layout = { width: size.width ?? 0, height: size.height ?? 0, nodes: {}, edges: {} };
  for (const id of part.nodes) {
    const { x, y } = graph.node(id);
    found.nodes[id] = { x, y };
  }
  for (const { id, from, to } of part.edges) {
    const edge = graph.edge(from, to);
    found.edges[id] = { points: edge.points ?? [], label: { x: edge.x ?? 0, y: edge.y ?? 0 } };
  }
  return found;
}

/** Places parts in rows. */
function packed(parts: Layout[], rowWidth: number): Layout {
  const whole: Layout = { width: 0, height: 0, nodes: {}, edges: {} };
  let left = 0;
  let top = 0;
  let height = 0;
  for (const part of parts) {
    if (left > 0 && left + part.width > rowWidth) {
      left = 0;
      top += height + GAP;
      height = 0;
    }
    const moved = ({ x, y }: Point): Point => ({ x: x + left + MARGIN, y: y + top + MARGIN });
    for (const [id, point] of Object.entries(part.nodes)) whole.nodes[id] = moved(point);
    for (const [id, edge] of Object.entries(part.edges)) {
      whole.edges[id] = { points: edge.points.map(moved), label: moved(edge.label) };
    }
    height = Math.max(height, part.height);
    whole.width = Math.max(whole.width, left + part.width + 2 * MARGIN);
    whole.height = Math.max(whole.height, top + height + 2 * MARGIN);
    left += part.width + GAP;
  }
  return whole;
}

const port = self as unknown as Worker;
port.onmessage = (event: MessageEvent<LayoutRequest>) => {
  const asked = event.data;
  let answer: LayoutAnswer;
  try {
    const parts = partsOf(asked).map((part) => layoutOf(part, asked));
    const layout = packed(parts, asked.isNarrow ? 0 : ROW_WIDTH);
    answer = { number: asked.number, layout };
  } catch (error) {
    answer = { number: asked.number, error: String(error) };
  }
  port.postMessage(answer);
};
