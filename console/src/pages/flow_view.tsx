// The picture of the flow: its nodes and queues, with what waits where, and what holds it up.
import type { JSX } from "preact";

import type { Bulletin, FlowComponent, FlowEdge, FlowGroup, FlowSummary } from "../answers";
import {
  edgeId,
  LABEL_HEIGHT,
  LABEL_WIDTH,
  NODE_HEIGHT,
  NODE_WIDTH,
  useLayout,
} from "../flow_graph";
import type { Layout, Point } from "../flow_layout";
import { short, size } from "../format";
import { useCountedUntil, useRates } from "../rates";
import { link, place } from "../router";
import { ErrorBox, useWidth, type Tone } from "../ui";

const NARROW_PX = 640;
const SMALLEST_SCALE = 0.75;

export const TONES: Record<string, Tone> = {
  running: "good",
  "run once": "good",
  starting: "busy",
  stopping: "busy",
  stopped: "idle",
  disabled: "idle",
  invalid: "bad",
};

/** Returns the address of a part of the flow, with what is searched and shown beside it. */
export function linkTo(part: { part?: string; queue?: string; group?: string }): string {
  const { search, view } = Object.fromEntries(place.value.params);
  return link(["flow"], { ...part, search, view });
}

interface ViewProps {
  status: FlowSummary;
  /** Time of the answer, in ms. */
  at: number;
  search: string;
  /** The components with warnings and errors. */
  failed: Bulletin[];
  selected: string;
  onGroup: (group: string) => void;
}

export function FlowView({ status, at, search, failed, selected, onGroup }: ViewProps): JSX.Element {
  const [host, width] = useWidth();
  const { layout, error } = useLayout(status, (width || window.innerWidth) < NARROW_PX);
  const rates = useRates();
  const until = useCountedUntil(at);
  const causes = new Set(status.causes);
  const failedIds = new Set(failed.map((one) => one.component));
  return (
    <div ref={host}>
      {error && <ErrorBox error={error} />}
      {layout === undefined && error === undefined && <p class="quiet">laying out the graph …</p>}
      {layout && (
        <div class="scroll picture" tabIndex={0} role="region" aria-label="graph of the flow">
          <svg
            class="graph"
            {...sizeOf(layout, width)}
            viewBox={`0 0 ${layout.width} ${layout.height}`}
            role="group"
            aria-label="flow"
          >
            <defs>
              <marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0 0L10 5L0 10z" class="arrow" />
              </marker>
            </defs>
            {status.edges.map((edge) => (
              <EdgeView key={edgeId(edge)} layout={layout} edge={edge} selected={selected} />
            ))}
            {status.components.map((one) => (
              <NodeView
                key={one.id}
                middle={layout.nodes[one.id]}
                component={one}
                rate={rates(one.id, one.in + one.created, until)}
                isCause={causes.has(one.id)}
                isFound={search !== "" && one.name.toLowerCase().includes(search.toLowerCase())}
                hasFailed={failedIds.has(one.id)}
                isSelected={selected === one.id}
              />
            ))}
            {status.groups.map((one) => (
              <GroupView
                key={one.id}
                middle={layout.nodes[one.id]}
                group={one}
                hasFailed={failed.some((bulletin) => bulletin.name.startsWith(`${one.path}/`))}
                isSelected={selected === one.path}
                onGroup={onGroup}
              />
            ))}
          </svg>
        </div>
      )}
    </div>
  );
}

/** The size of the picture: a graph that is a little too wide is drawn smaller, a wider one scrolls. */
function sizeOf(layout: Layout, width: number): { width: number; height: number } {
  const scale = width > 0 && layout.width * SMALLEST_SCALE <= width ? Math.min(1, width / layout.width) : 1;
  return { width: layout.width * scale, height: layout.height * scale };
}

function EdgeView({
  layout,
  edge,
  selected,
}: {
  layout: Layout;
  edge: FlowEdge;
  selected: string;
}): JSX.Element | null {
  const placed = layout.edges[edgeId(edge)];
  if (placed === undefined) return null;
  const path = placed.points.map((one, index) => `${index === 0 ? "M" : "L"}${one.x} ${one.y}`).join("");
  const { x, y } = placed.label;
  const { queued, queuedBytes, swapped, penalized, full } = edge;
  const kind = full > 0 ? "full" : queued > 0 ? "waits" : "";
  const signs = `${swapped > 0 ? " ▼" : ""}${penalized > 0 ? " ◷" : ""}`;
  const text = `${short(queued)}${queued > 0 ? ` · ${size(queuedBytes)}` : ""}${signs}`;
  const others = edge.connections > 1 ? ` and ${edge.connections - 1} more` : "";
  // It begins with what is seen, as those who speak to their browser need it.
  const said = [
    `${text} in the queue ${edge.name}${others}`,
    swapped > 0 && `${short(swapped)} on disk`,
    penalized > 0 && `${short(penalized)} penalized`,
    full > 0 && "full",
  ]
    .filter(Boolean)
    .join(", ");
  return (
    <a
      href={linkTo({ queue: edge.connection })}
      aria-label={said}
      class={`edge ${kind} ${selected === edge.connection ? "selected" : ""}`}
    >
      <path d={path} marker-end="url(#arrow)" />
      <rect
        x={x - LABEL_WIDTH / 2}
        y={y - LABEL_HEIGHT / 2}
        width={LABEL_WIDTH}
        height={LABEL_HEIGHT}
        rx={LABEL_HEIGHT / 2}
      />
      <text x={x} y={y + 4} text-anchor="middle">
        {text}
      </text>
    </a>
  );
}

interface BoxProps {
  middle: Point;
  kinds: (string | false)[];
  title: string;
  lines: string[];
  href: string;
  hasFailed: boolean;
  onClick?: (event: Event) => void;
}

function Box({ middle, kinds, title, lines, href, hasFailed, onClick }: BoxProps): JSX.Element {
  const left = middle.x - NODE_WIDTH / 2;
  const top = middle.y - NODE_HEIGHT / 2;
  return (
    <a class={`node ${kinds.filter(Boolean).join(" ")}`} href={href} {...(onClick ? { onClick } : {})}>
      <rect x={left} y={top} width={NODE_WIDTH} height={NODE_HEIGHT} rx="9" />
      <text x={left + 12} y={top + 24} class="title">
        {cut(title)}
      </text>
      {lines.map((line, index) => (
        <text key={index} x={left + 12} y={top + 43 + 18 * index}>
          {cut(line)}
        </text>
      ))}
      {hasFailed && (
        <text x={left + NODE_WIDTH - 22} y={top + 24} class="sign" role="img" aria-label="with warnings or errors">
          ▲
        </text>
      )}
    </a>
  );
}

function NodeView({
  middle,
  component,
  rate,
  isCause,
  isFound,
  hasFailed,
  isSelected,
}: {
  middle: Point | undefined;
  component: FlowComponent;
  rate: number | undefined;
  isCause: boolean;
  isFound: boolean;
  hasFailed: boolean;
  isSelected: boolean;
}): JSX.Element | null {
  if (middle === undefined) return null; // its layout is on the way
  const { state } = component;
  return (
    <Box
      middle={middle}
      title={component.name.split("/").at(-1) ?? component.name}
      lines={[
        component.type || component.kind,
        isCause ? "holds others up" : state === "running" ? `${short(rate)} FlowFiles/s` : state,
      ]}
      kinds={[
        TONES[state] ?? "idle",
        isCause && "cause",
        isFound && "found",
        hasFailed && "failed",
        isSelected && "selected",
      ]}
      href={linkTo({ part: component.id })}
      hasFailed={hasFailed}
    />
  );
}

function GroupView({
  middle,
  group,
  hasFailed,
  isSelected,
  onGroup,
}: {
  middle: Point | undefined;
  group: FlowGroup;
  hasFailed: boolean;
  isSelected: boolean;
  onGroup: (group: string) => void;
}): JSX.Element | null {
  if (middle === undefined) return null;
  const isCause = group.causes > 0;
  const invalid = group.states["invalid"] ?? 0;
  return (
    <Box
      middle={middle}
      title={group.path}
      lines={[
        `group of ${short(group.components)}${invalid > 0 ? `, ${invalid} invalid` : ""}`,
        isCause ? "holds others up" : `${short(group.queued)} wait in it`,
      ]}
      kinds={[
        TONES[invalid > 0 ? "invalid" : "group"] ?? "idle",
        isCause && "cause",
        hasFailed && "failed",
        isSelected && "selected",
      ]}
      href={linkTo({ group: group.path })}
      hasFailed={hasFailed}
      onClick={(event) => {
        event.preventDefault();
        onGroup(group.path);
      }}
    />
  );
}

function cut(text: string): string {
  return text.length > 27 ? `${text.slice(0, 26)}…` : text;
}
