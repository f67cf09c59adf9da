import { render } from "preact";

import { Datasources } from "./pages/datasources";
import { Flows } from "./pages/flows";
import { Home } from "./pages/home";
import { Lineage } from "./pages/lineage";
import { Load } from "./pages/load";
import { Locks } from "./pages/locks";
import { Lookups } from "./pages/lookups";
import { Replays } from "./pages/replays";
import { Sql } from "./pages/sql";
import { Supervisors } from "./pages/supervisors";
import { Tasks } from "./pages/tasks";
import { Topics } from "./pages/topics";
import { Trace } from "./pages/trace";
import { Shell, type Page } from "./shell";

const PAGES: Page[] = [
  { path: "", title: "Home", render: () => <Home /> },
  { path: "topics", title: "Topics", render: (parts) => <Topics parts={parts} /> },
  { path: "flow", title: "Flow", render: () => <Flows /> },
  { path: "supervisors", title: "Supervisors", render: (parts) => <Supervisors parts={parts} /> },
  { path: "tasks", title: "Tasks", render: (parts) => <Tasks parts={parts} /> },
  { path: "datasources", title: "Datasources", render: (parts) => <Datasources parts={parts} /> },
  { path: "sql", title: "SQL", render: () => <Sql /> },
  { path: "load", title: "Load data", render: () => <Load /> },
  { path: "trace", title: "Trace", render: (parts) => <Trace parts={parts} /> },
  { path: "lookups", title: "Lookups", under: "datasources", render: (parts) => <Lookups parts={parts} /> },
  { path: "lineage", title: "Lineage", under: "trace", render: (parts) => <Lineage parts={parts} /> },
  { path: "replays", title: "Replay", under: "trace", render: () => <Replays /> },
  { path: "locks", title: "Locks", under: "tasks", render: () => <Locks /> },
];

const root = document.getElementById("app");
if (root !== null) {
  root.textContent = "";
  render(<Shell pages={PAGES} />, root);
}
