// The forms of the answers that pages read: the fields that they use, as `/openapi.json` has them.

export interface Wait {
  dependency: string;
  work: string;
  since: string;
  tries: number;
  error: string;
  /** The task or supervisor that waits, such as `task t`. */
  owner?: string | null;
}

export interface ClusterStatus {
  version: string;
  ready: boolean;
  /** Whether it is not ready because it was started a short time ago. */
  starting: boolean;
  reasons: string[];
  waits: Wait[];
  services: {
    service: string;
    instance: string;
    address: string;
    ready: boolean;
    starting: boolean;
    reasons: string[];
    memoryBytes: number | null;
  }[];
}

export interface TopicRow {
  topic_name: string;
  paused: boolean;
  partitions: number;
  message_count: number;
  message_bytes: number;
  topic_depth: number;
  depth: number;
  in_flight_count: number;
  deferred_count: number;
  client_count: number;
  channel_count: number;
  bytes: number;
}

export interface TopicList {
  at: number;
  topics: number;
  found: number;
  message_count: number;
  message_bytes: number;
  depth: number;
  in_flight_count: number;
  page: TopicRow[];
}

export interface Client {
  client_id: string;
  remote_address: string;
  ready_count: number;
  in_flight_count: number;
  message_count: number;
  finish_count: number;
  requeue_count: number;
  connect_ts: number;
  user_agent: string;
}

export interface Channel {
  channel_name: string;
  depth: number;
  in_flight_count: number;
  deferred_count: number;
  message_count: number;
  requeue_count: number;
  timeout_count: number;
  client_count: number;
  clients: Client[] | null;
  paused: boolean;
  messages_lost: number;
  messages_expired: number;
  messages_dead_lettered: number;
  messages_given_up: number;
  messages_shed: number;
}

export interface Partition {
  partition: number;
  earliest: number;
  latest: number;
  durable: number;
  bytes: number;
  log_files: number;
  unsynced_messages: number;
  messages_lost: number;
  cursors: Record<string, number>;
}

export interface Topic {
  topic_name: string;
  channels: Channel[];
  depth: number;
  message_count: number;
  message_bytes: number;
  paused: boolean;
  messages_lost: number;
  messages_dropped: number;
  messages_refused: number;
  repeated_publishes: number;
  partitions: Partition[];
}

export interface BrokerStatistics {
  start_time: number;
  topics: Topic[] | null;
}

export interface PeekedMessage {
  id: string;
  partition: number;
  offset: number;
  /** Nanoseconds since 1970, more digits than a number here keeps. */
  timestamp: number;
  due: number | null;
  state?: string;
  attempts?: number;
  size: number;
  body?: string;
  body_base64?: string;
  redriven?: boolean;
  dead_letter?: DeadLetter;
}

/** A message that could not become a row, as a task publishes it. */
export interface DeadLetter {
  topic: string;
  partition: number;
  offset: number;
  reason: string;
  left_out_bytes: number;
  size?: number;
  body?: string;
  body_base64?: string;
}

export interface Redrive {
  redriven: Record<string, number>;
  already: number;
  skipped: number;
  reasons: { offset: number; reason: string }[];
  scanned: number;
  next_offset: number;
  end: number;
  total: number;
}

export interface Seek {
  partitions: { partition: number; offset: number; repeated: number; skipped: number }[];
}

export interface Peek {
  topic: string;
  partition: number;
  earliest: number;
  latest: number;
  next_offset: number;
  scanned: number;
  origins: string[];
  messages: PeekedMessage[];
}

export interface Supervisor {
  id: string;
  type: string;
  dataSource: string;
  state: string;
  detailedState: string;
  healthy: boolean;
  suspended: boolean;
  aggregateLag?: number;
  waits: Wait[];
}

export interface TaskRow {
  id: string;
  groupId: string;
  type: string;
  createdTime: string;
  statusCode: string;
  runnerStatusCode: string;
  duration: number;
  dataSource: string;
  errorMsg: string | null;
}

export interface ListedDatasource {
  name: string;
  /** Row filters or masks apply to the principal, so there are no sums. */
  isLimited: boolean;
  segments?: number;
  /** null: not added up yet. */
  bytes?: number | null;
  rows?: number | null;
  /** Rows in files of running tasks. */
  runningRows?: number;
  minTime?: string | null;
  maxTime?: string | null;
  publishedTime?: string | null;
  /** The newest time in rows of running tasks. */
  newestRow?: string | null;
}

export interface DatasourcePage {
  found: number;
  datasources: ListedDatasource[];
  /** Over all datasources, if they were asked for. */
  sums?: { datasources: number; segments: number; bytes: number; newestRow: string | null };
}

export interface LookupState {
  name: string;
  /** Number of the spec. */
  version: number;
  changed: string;
  /** Grows with each refresh that changes rows. */
  contentVersion: number;
  loaded: string;
  rows: number;
  bytes: number;
  nextRefresh: string | null;
  /** Refreshes that failed since the last one that succeeded. */
  failures: number;
  failed: string | null;
  reason: string | null;
}

export interface Lookups {
  lookups: LookupState[];
}

export interface LookupWithSpec extends LookupState {
  spec: unknown;
}

export interface DatasourceSums {
  used: StateSums;
  /** What queries read of the used ones. */
  visible: StateSums;
  unused: StateSums;
  /** Segments that overlap the interval without lying within it. */
  overlapping?: number;
}

/** A retention rule; it may have more fields, which stay as they are. */
export interface RetentionRule {
  type: string;
  period?: string;
  interval?: string;
  includeFuture?: boolean;
}

export interface RulesPreview {
  dropped: StateSums;
  kept: StateSums;
  intervalCount: number;
  intervals: (StateSums & { datasource: string; interval: string })[];
}

export interface HostResources {
  disk: { totalBytes: number; freeBytes: number } | null;
  parts: { name: string; bytes: number }[];
  isComplete: boolean;
  memory: { totalBytes: number; availableBytes: number } | null;
}

export interface FlowComponent {
  id: string;
  kind: string;
  /** With the names of its groups: `Ingest/Read`. */
  name: string;
  type: string;
  state: string;
  problems: string[];
  activeTasks: number;
  waitsFor: string;
  nextFiring: string | null;
  runs: number;
  failures: number;
  runMs: number;
  in: number;
  inBytes: number;
  out: number;
  outBytes: number;
  created: number;
}

export interface FlowProperty {
  name: string;
  value: string | string[] | null;
  default: string | null;
  isSensitive: boolean;
  isRequired: boolean;
  about: string;
}

export interface FlowComponentDetail extends FlowComponent {
  desired: string;
  terminatedTasks: number;
  longestActiveMs: number;
  yieldedUntil: string | null;
  waits: Wait[];
  stateEntries: number;
  nextFirings: string[];
  inputs: FlowConnection[];
  outputs: FlowConnection[];
  /** null: it is a funnel or a port. */
  definition: {
    comments: string;
    enabled: boolean;
    schedule: string;
    zone: string;
    catchUp: boolean;
    concurrentTasks: number;
    runDuration: string;
    penaltyDuration: string;
    yieldDuration: string;
    autoTerminated: string[];
    retry: Record<string, number>;
    properties: FlowProperty[];
  } | null;
}

/** What a command did to the components of a group. */
export interface FlowOutcome {
  started?: string[];
  stopped?: string[];
  ran?: string[];
  terminated?: string[];
  refused?: { id: string; name: string; reason: string }[];
}

export interface FlowChange {
  kind: "added" | "removed" | "changed";
  component: string;
  id: string;
  name: string;
  stops: string[];
  queued: number;
  queuedBytes: number;
  text: string;
}

export interface FlowChanges {
  revision: number;
  changes: FlowChange[];
  /** Whether the comments of the text differ from those that are stored. */
  commentsChanged: boolean;
  owner: string;
  previousOwner: string | null;
  /** Whether all processors restart, because the flow acts with other rights. */
  allRestart: boolean;
}

export interface FlowProblem {
  line: number;
  column: number;
  path: string;
  message: string;
}

export interface DropRequest {
  request: number;
  state: "waiting" | "dropping" | "complete" | "failed" | "cancelled";
  dropped: number;
  droppedBytes: number;
  failure: string;
}

export interface FlowConnection {
  id: string;
  name: string;
  source: string;
  destination: string;
  queued: number;
  queuedBytes: number;
  active: number;
  activeBytes: number;
  swapped: number;
  swappedBytes: number;
  swapFiles: number;
  unacknowledged: number;
  penalized: number;
  sourceName?: string;
  destinationName?: string;
  lastSwapFailure: string;
  lost: number;
  full: boolean;
  backPressureCount: number;
  backPressureBytes: number;
  expired: number;
}

/** The sums of a closed group. */
export interface FlowGroup {
  id: string;
  path: string;
  components: number;
  states: Record<string, number>;
  problems: number;
  failures: number;
  in: number;
  created: number;
  queued: number;
  queuedBytes: number;
  full: number;
  /** The number of its components that hold others up. */
  causes: number;
}

/** The queues between two nodes, each a component or a closed group. */
export interface FlowEdge {
  from: string;
  to: string;
  /** Id and name of one of the queues: of a full one, if there is one. */
  connection: string;
  name: string;
  connections: number;
  queued: number;
  queuedBytes: number;
  swapped: number;
  penalized: number;
  full: number;
}

export interface FlowSummary {
  name: string;
  revision: number;
  components: FlowComponent[];
  groups: FlowGroup[];
  edges: FlowEdge[];
  openGroups: string[];
  omitted: number;
  causes: string[];
  /** Names of components that should run, but were left stopped. */
  held: string[];
  totals: {
    components: number;
    groups: number;
    states: Record<string, number>;
    queued: number;
    queuedBytes: number;
    penalized: number;
    full: number;
    causes: number;
    in: number;
    created: number;
  };
  /** Components that should run and cannot; the first 20. */
  stuck: { id: string; name: string; type: string; problem: string }[];
  /** Components that hold others up, with the number of full queues before each and the name of one; the first 20. */
  holdups: { id: string; name: string; full: number; queue: string }[];
  found: { id: string; name: string; type: string; state: string }[];
  repository: { flowfiles: number; swapped_flowfiles: number };
}

export interface Bulletin {
  number: number;
  time: string;
  level: string;
  /** Id of the component; empty: there is none. */
  component: string;
  /** Its name, with the path of its group. */
  name: string;
  message: string;
}

export interface Bulletins {
  count: number;
  bulletins: Bulletin[];
}

export interface QueuedFlowFile {
  id: number;
  size: number;
  entryDate: string;
  lineageStartDate: string;
  queuedDate: string;
  /** Its place from 1 on; null: the list has no order. */
  position: number | null;
  penalized: boolean;
  penalizedUntil: string | null;
  attributes: Record<string, string>;
}

export interface QueueList {
  queued: number;
  flowFiles: QueuedFlowFile[];
}

export interface TaskWait {
  kind: "locks" | "line" | "slots" | "worker" | "publish" | "retry" | "dependency";
  text: string;
  locks: {
    type: string;
    interval: string;
    taskIds: string[];
    groupId: string;
    priority: number;
    sinceMs: number;
  }[];
  workers: { worker: string; reason: string; taskIds: string[] }[];
}

export interface TaskWhy {
  task: string;
  status: TaskRow;
  waits: TaskWait[];
}

export interface TaskSearch {
  counts: { waiting: number; pending: number; running: number };
  activeFound: number;
  hasMoreEnded: boolean;
  tasks: TaskRow[];
}

export interface TableLock {
  type: string;
  groupId: string;
  dataSource: string;
  interval: string;
  version: string;
  priority: number;
  revoked: boolean;
  granularity: string;
  taskIds: string[];
  partitionId?: number;
  tasks: number;
  since: string;
}

export interface WaitingTask {
  task: string;
  dataSource: string;
  priority: number;
  created: string;
  requests: { type: string; interval: string; heldBy: string[] }[];
}

export interface LockTable {
  locks: TableLock[];
  hasMoreLocks: boolean;
  waiting: WaitingTask[];
  waitingTasks: number;
}

export interface WorkerRow {
  worker: { host: string; name: string; capacity: number; version: string; category: string; disabled: boolean };
  currCapacityUsed: number;
  runningTasks: string[];
  lastCompletedTaskTime: string | null;
  blacklistedUntil: string | null;
}

export interface RunningQuery {
  queryId: string;
  principal: string;
  state: "RUNNING" | "WAITING";
  reason: string;
  statement: string;
  isCut: boolean;
  runningMs: number;
}

export interface TaskReport {
  ingestionStatsAndErrors?: {
    payload: {
      rowStats?: Record<string, Record<string, number>>;
      unparseableEvents?: Record<string, { details?: string[]; input?: string }[]>;
      /** The following fields are those of a batch task. */
      ingestionState?: string;
      partsDone?: number;
      partsTotal?: number;
      filesRead?: number;
      filesTotal?: number;
      rowsRead?: number;
      rowsWritten?: number;
    };
  };
}

export type Offsets = Record<string, number>;

export interface SupervisedTask {
  id: string;
  groupId: number;
  type: string;
  phase?: string;
  remainingSeconds?: number;
  currentOffsets?: Offsets;
  lag?: Offsets | null;
  waitsFor?: string;
}

export interface SupervisorPayload {
    type: string;
    dataSource: string;
    stream?: string;
    durationSeconds?: number;
    useEarliestOffset?: boolean;
    /** Start and end of the range of each stream partition that it reads before it stops. */
    boundedOffsets?: Record<string, [number, number]>;
    earliestOffsets?: Offsets;
    activeTasks?: SupervisedTask[];
    publishingTasks?: SupervisedTask[];
    latestOffsets?: Offsets;
    committedOffsets?: Offsets;
    aggregateLag?: number;
    suspended: boolean;
    healthy: boolean;
    detailedState: string;
    recentErrors?: { timestamp: string; exceptionMessage: string }[];
    waits?: Wait[];
    tasksWaitFor?: string[];
    shortOfSlots?: string;
    segmentCountAwaitingCompaction?: number;
    segmentCountCompacted?: number;
    segmentCountSkipped?: number;
    due?: string[];
}

export interface SupervisorStatus {
  id: string;
  payload: SupervisorPayload;
}

export interface SupervisorSums {
  supervisors: number;
  unhealthy: number;
  suspended: number;
  waiting: number;
  lag: number;
  rowsPerSecond: number;
}

export interface SupervisorPage {
  found: number;
  supervisors: Supervisor[];
  /** Only if they were asked for. */
  sums?: SupervisorSums;
}

/** Samples of the last hour: times and ages in ms. */
export interface LagSeries {
  everyMs: number;
  times: number[];
  messages: number[];
  oldestMs: number[];
}

/** By task group and task. */
export type SupervisorStats = Record<
  string,
  Record<
    string,
    {
      totals: { buildSegments: Record<string, number> };
      movingAverages: { buildSegments: Record<string, Record<string, number>> };
    }
  >
>;

export type ParseErrors = Record<
  string,
  Record<string, { partition: number; offset: number; reason: string; input: string }[]>
>;

/** Offsets of a topic; with a time, the first one at or after it. */
export interface TopicOffsets {
  partitions: { partition: number; earliest: number; latest: number; offset: number }[];
}

export interface ColumnRow {
  col_name: string;
  data_type: string;
}

export interface StateSums {
  segments: number;
  bytes: number;
  rows: number;
}

export interface TimelineCell {
  start: string;
  end: string;
  segments: number;
  versions: number;
  newestVersion: string | null;
  hiddenBy: string | null;
  visible?: StateSums;
  overshadowed?: StateSums;
  incomplete?: StateSums;
  unused?: StateSums;
  running?: { files: number; bytes: number; rows: number };
}

export interface TimelineSegment {
  segment: string;
  interval: string;
  version: string;
  partition: number;
  bytes: number;
  rows: number;
  state: string;
  hiddenBy: { interval: string; version: string }[];
  /** The task that published its rows, and when; null: unknown. */
  task: string | null;
  published: string | null;
}

/** The newest publishes of a task, and some of the segments that have their rows. */
export interface TaskSegments {
  dataSource: string;
  publishes: { publishedAt: string; sequence: string | null; rows: number }[];
  count: number;
  segments: {
    segment: string;
    interval: string;
    version: string;
    partition: number;
    bytes: number;
    rows: number;
    used: boolean;
  }[];
}

export interface SegmentTimeline {
  /** From the first to the last data of the datasource. */
  range: string;
  /** What the cells cover. */
  interval: string;
  cellMs: number;
  segments: number;
  files: number;
  versions: { count: number; newest: string[] };
  cells: TimelineCell[];
  /** null: too many. */
  segmentList: TimelineSegment[] | null;
  fileList: { task: string; interval: string; bytes: number; rows: number }[] | null;
}

export interface InputSample {
  inputFormat: { [name: string]: string | number | boolean | string[] };
  timestampSpec: { column: string; format: string; missingValue?: string } | null;
  timeCandidates: { column: string; format: string; share: number; also: string }[];
  dimensions: { name: string; type: string }[];
  files: { count: number; bytes: number; first: string; allCounted: boolean };
  rows: Record<string, unknown>[];
  errors: { place: string; reason: string; row: string }[];
  read: { rows: number; bad: number; whole: boolean };
  notes: string[];
  time: {
    start?: string;
    end?: string;
    rows: number | null;
    exact: boolean;
    granularities: { name: string; chunks: number; segments: number | null; rowsEach: number | null }[];
    usualGranularity?: string;
  } | null;
}

export interface ProvenanceEvent {
  id: string;
  time: number;
  event: string;
  component?: string;
  relationship?: string;
  queue?: string;
  flowfile?: number;
  filename?: string;
  parents?: number[];
  children?: number[];
  parent_count?: number;
  child_count?: number;
  size?: number;
  section?: string;
  resource?: string;
  claim_offset?: number;
  content_offset?: number;
  topic?: string;
  partition?: number;
  offset?: number;
  count?: number;
  reason?: string;
  /** Who replayed it, or got its content. */
  principal?: string;
  /** Revision of the flow whose processor made it. */
  revision?: number;
}

export interface Lineage {
  flowfiles: number[];
  events: ProvenanceEvent[];
  /** Whether no bound left something out. */
  complete: boolean;
  /** Names of components and connections, by id. */
  names: Record<string, string>;
}

export interface ReplayStep {
  /** Number of FlowFiles for each outcome; `replayed` of a preview: of those that could be. */
  outcomes: Record<string, number>;
  /** Some of those that are not replayed. */
  examples: { flowfile: number; outcome: string; reason: string }[];
  /** Where the next step begins; null: this was the last one. */
  next: string | null;
  until: number;
  /** Epoch ms of the last event that was read. */
  time: number | null;
}

export interface TraceStep {
  step: string;
  time: string | null;
  text: string;
  details: Record<string, unknown>;
}

export interface TraceReader {
  supervisor: string;
  datasource: string;
  outcome: string;
  inSql: boolean | null;
  reason: string;
  rolledUp: boolean;
  steps: TraceStep[];
  readAgain?: boolean;
  terminated?: boolean;
  deadLetter?: { topic: string; partition?: number; offset?: number };
}

export interface MessageTrace {
  topic: string;
  partition: number;
  offset: number;
  id: string;
  message: { kept: boolean; publishedAt: string | null; bytes: number | null };
  flow: TraceStep[];
  readers: TraceReader[];
}

export interface RowTrace {
  datasource: string;
  time: string;
  rows: number;
  unread: string;
  rolledUp: boolean;
  segments: {
    segment: string;
    rows: number;
    task: string | null;
    publishedAt?: string;
    input?: unknown;
    reason?: string;
  }[];
  running: { sequence: string; task: string; rows: number }[];
  messages: { topic: string; partition: number; offset: number; id: string; publishedAt: string }[];
  scanned: number;
  toScan: number;
  cursor: string | null;
  notes: string[];
}
