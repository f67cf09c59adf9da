// The editor of SQL: colours, completion, brackets, and a mark where the server found an error.
//
// It is a file of its own, which only the SQL page loads. Its styles are in a shadow root, as sheets
// that a script makes, because the policy of the page allows no inline styles.
import {
  autocompletion,
  closeBrackets,
  completionKeymap,
  type CompletionContext,
  type CompletionResult,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { sql, SQLDialect } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState, StateEffect, StateField, type Transaction } from "@codemirror/state";
import {
  Decoration,
  drawSelection,
  EditorView,
  keymap,
  lineNumbers,
  type DecorationSet,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

const KEYWORDS =
  "all and anti any array as asc between by case cast cluster cross cube current date day days describe desc " +
  "distinct distribute else end escape except exists explain extract false fetch filter first following for from " +
  "full function functions group grouping having hour hours ilike in inner insert intersect interval into is join " +
  "last lateral left like limit map minute minutes minus month months natural not null nulls offset on or order " +
  "outer over overwrite partition partitioned clustered pivot preceding qualify range recursive regexp replace right " +
  "rlike rollup row rows second seconds select semi sets show some sort struct table tables tablesample then time " +
  "timestamp to trailing true unbounded union unpivot using values view week weeks when where window with within " +
  "year years zone";
const TYPES =
  "array bigint binary boolean byte char date decimal double float int integer interval long map numeric real " +
  "short smallint string struct timestamp timestamp_ltz timestamp_ntz tinyint varchar variant";

export interface Editor {
  text(): string;
  setText(text: string): void;
  /** Marks a place, counted from 1; none: removes the mark. */
  setError(place: { line: number; column: number } | null): void;
  destroy(): void;
}

/** Columns by datasource, and names of functions. */
export interface Names {
  tables: Record<string, string[]>;
  functions: string[];
}

const markError = StateEffect.define<{ from: number; to: number } | null>();
const errorMark = Decoration.mark({ class: "cm-error" });
const errors = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    let next = transaction.docChanged ? Decoration.none : marks;
    for (const effect of transaction.effects)
      if (effect.is(markError))
        next =
          effect.value === null
            ? Decoration.none
            : Decoration.set([errorMark.range(effect.value.from, effect.value.to)]);
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

export const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--busy)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--warn)" },
]);

export const look = EditorView.theme({
  "&": {
    color: "var(--text)",
    backgroundColor: "var(--card)",
    border: "1px solid var(--line)",
    borderRadius: "6px",
    fontSize: "14px",
  },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-scroller": { fontFamily: "var(--mono)", minHeight: "9rem", maxHeight: "45vh" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--back)", color: "var(--quiet)", border: "0" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in srgb, var(--accent) 30%, transparent)",
  },
  ".cm-error": { textDecoration: "underline wavy var(--bad)", textUnderlineOffset: "3px" },
  ".cm-tooltip": {
    backgroundColor: "var(--card)",
    color: "var(--text)",
    border: "1px solid var(--line)",
  },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": {
    backgroundColor: "var(--accent)",
    color: "var(--card)",
  },
});

/** Makes an editor in an element. `run` is called for Control-Enter. */
export function makeEditor(
  host: HTMLElement,
  text: string,
  names: Names,
  changed: (text: string) => void,
  run: () => void,
): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const dialect = SQLDialect.define({
    keywords: KEYWORDS,
    types: TYPES,
    builtin: names.functions.filter((name) => /^[a-z_][a-z_0-9]*$/.test(name)).join(" "),
    identifierQuotes: "`",
    doubleQuotedStrings: true,
    hashComments: false,
  });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([
          {
            key: "Mod-Enter",
            run: () => {
              run();
              return true;
            },
          },
          ...completionKeymap,
          ...defaultKeymap,
          ...historyKeymap,
        ]),
        history(),
        lineNumbers(),
        drawSelection(),
        bracketMatching(),
        closeBrackets(),
        autocompletion(),
        sql({ dialect, schema: names.tables }),
        dialect.language.data.of({ autocomplete: (context: CompletionContext) => columnsFor(context, names.tables) }),
        syntaxHighlighting(colours),
        errors,
        look,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": "statement", spellcheck: "false" }),
        EditorView.domEventHandlers({ beforeinput: replaceSelection }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) changed(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    setText: (next) =>
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    setError: (place) => view.dispatch({ effects: markError.of(rangeOf(view, place)) }),
    destroy: () => view.destroy(),
  };
}

/** Columns of the datasources that the statement names, or of all until it names one.
 *
 * The completion of the language offers columns only behind the name of a datasource and a dot.
 */
function columnsFor(context: CompletionContext, tables: Names["tables"]): CompletionResult | null {
  const word = context.matchBefore(/[\w.]+/);
  if (word === null || word.text.includes(".")) return null;
  const words = new Set(context.state.doc.toString().split(/[^\w.-]+/));
  const named = Object.keys(tables).filter((table) => words.has(table));
  const from = named.length > 0 ? named : Object.keys(tables);
  const columns = new Set(from.flatMap((table) => tables[table] ?? []));
  const options = [...columns].map((label) => ({
    label,
    type: "property",
    apply: /^[A-Za-z_]\w*$/.test(label) ? label : `\`${label.replaceAll("`", "``")}\``,
    boost: 1,
  }));
  return { from: word.from, options, validFor: /^\w*$/ };
}

/** Replaces selected text by what is typed.
 *
 * Left to itself, Chromium would keep the colours of the old text by an inline style, which the
 * policy of the page refuses with a report.
 */
export function replaceSelection(event: InputEvent, view: EditorView): boolean {
  const typed = event.data;
  const { from, to, empty } = view.state.selection.main;
  if (event.inputType !== "insertText" || typed === null || empty || view.composing) return false;
  event.preventDefault();
  if (view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, typed, typedOver)))
    return true;
  view.dispatch(typedOver());

  function typedOver(): Transaction {
    return view.state.update(view.state.replaceSelection(typed ?? ""), { userEvent: "input.type" });
  }
  return true;
}

/** The characters of a word at a place; the last character where nothing follows. */
function rangeOf(
  view: EditorView,
  place: { line: number; column: number } | null,
): { from: number; to: number } | null {
  const doc = view.state.doc;
  if (place === null || place.line < 1 || place.line > doc.lines || doc.length === 0) return null;
  const line = doc.line(place.line);
  const from = Math.min(line.from + Math.max(0, place.column - 1), Math.max(line.from, line.to - 1));
  const word = /^[\w`.]+/.exec(doc.sliceString(from, line.to))?.[0] ?? "";
  const to = Math.min(doc.length, from + Math.max(1, word.length));
  return to > from ? { from, to } : null;
}
