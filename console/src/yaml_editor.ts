// The editor of the YAML of a flow: colours, line numbers, and marks where the server found problems.
//
// Its styles are in a shadow root, as those of the editor of SQL, because the policy of the page
// allows no inline styles.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { StreamLanguage, syntaxHighlighting, type StringStream } from "@codemirror/language";
import { EditorState, RangeSet, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  drawSelection,
  EditorView,
  gutterLineClass,
  GutterMarker,
  keymap,
  lineNumbers,
  type DecorationSet,
} from "@codemirror/view";

import type { FlowProblem } from "./answers";
import { colours, look, replaceSelection } from "./sql_editor";

export interface YamlEditor {
  text(): string;
  setText(text: string): void;
  setProblems(problems: FlowProblem[]): void;
  /** Moves the cursor to a place, counted from 1. */
  goTo(line: number, column: number): void;
  destroy(): void;
}

// Only what colours need; the server reads the text.
const yaml = StreamLanguage.define<{ isValue: boolean }>({
  name: "yaml",
  startState: () => ({ isValue: false }),
  token(stream: StringStream, state): string | null {
    if (stream.sol()) state.isValue = false;
    if (stream.eatSpace()) return null;
    if (stream.match(/^#(?!\{).*/)) return "comment";
    if (stream.match(/^"(?:[^"\\]|\\.)*"?/) || stream.match(/^'(?:[^']|'')*'?/)) {
      return !state.isValue && stream.match(/^\s*:(?=\s|$)/, false) ? "keyword" : "string";
    }
    if (stream.match(/^[{[,]/)) {
      state.isValue = false;
      return null;
    }
    if (!state.isValue && stream.match(/^[^\s#:,{}[\]&*!|>'"%@`-][^:{}[\],#]*(?=:(?:\s|$))/)) return "keyword";
    if (stream.match(/^:(?=\s|$)/)) {
      state.isValue = true;
      return null;
    }
    if (stream.match(/^(?:true|false|null|~)(?=\s|[,}\]]|$)/)) return "bool";
    if (stream.match(/^-?\d+(?:\.\d+)?(?=\s|[,}\]]|$)/)) return "number";
    if (!stream.match(/^[^\s,}\]]+/)) stream.next();
    return null;
  },
});

const setMarks = StateEffect.define<FlowProblem[]>();

class WrongLine extends GutterMarker {
  override elementClass = "cm-wrong-line";
}
const wrongLine = new WrongLine();

const marks = StateField.define<{ words: DecorationSet; lines: RangeSet<GutterMarker> }>({
  create: () => ({ words: Decoration.none, lines: RangeSet.empty }),
  update(old, transaction) {
    let next = transaction.docChanged
      ? { words: old.words.map(transaction.changes), lines: old.lines.map(transaction.changes) }
      : old;
    for (const effect of transaction.effects) {
      if (!effect.is(setMarks)) continue;
      const doc = transaction.state.doc;
      const places = effect.value
        .filter((one) => one.line >= 1 && one.line <= doc.lines)
        .map((one) => ({ ...one, at: doc.line(one.line) }))
        .sort((a, b) => a.at.from - b.at.from);
      const words = places.flatMap(({ at, column, message }) => {
        const from = Math.min(at.to, at.from + Math.max(0, column - 1));
        return at.to > from
          ? [Decoration.mark({ class: "cm-error", attributes: { title: message } }).range(from, at.to)]
          : [];
      });
      next = {
        words: Decoration.set(words, true),
        lines: RangeSet.of(
          [...new Set(places.map((one) => one.at.from))].map((from) => wrongLine.range(from)),
        ),
      };
    }
    return next;
  },
  provide: (field) => [
    EditorView.decorations.from(field, (one) => one.words),
    gutterLineClass.from(field, (one) => one.lines),
  ],
});

const own = EditorView.theme({
  ".cm-scroller": { minHeight: "18rem", maxHeight: "70vh" },
  ".cm-wrong-line": { color: "var(--bad)", fontWeight: "700" },
});

/** Makes an editor in an element. */
export function makeYamlEditor(
  host: HTMLElement,
  text: string,
  changed: (text: string) => void,
): YamlEditor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        // Tab leaves the editor, so that it is no trap for the keyboard.
        keymap.of([...defaultKeymap, ...historyKeymap]),
        history(),
        lineNumbers(),
        drawSelection(),
        yaml,
        syntaxHighlighting(colours),
        marks,
        look,
        own,
        EditorView.contentAttributes.of({ "aria-label": "YAML of the flow", spellcheck: "false" }),
        EditorView.domEventHandlers({ beforeinput: replaceSelection }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) changed(update.state.doc.toString());
        }),
      ],
    }),
  });
  view.scrollDOM.tabIndex = 0; // a long text is scrolled by the keyboard without moving the cursor
  return {
    text: () => view.state.doc.toString(),
    setText: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    setProblems: (problems) => view.dispatch({ effects: setMarks.of(problems) }),
    goTo: (line, column) => {
      const at = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines)));
      const place = Math.min(at.to, at.from + Math.max(0, column - 1));
      view.dispatch({ selection: { anchor: place }, scrollIntoView: true });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}
