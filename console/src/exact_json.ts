// JSON without loss: long integers keep all digits, and a text keeps its numbers when it is indented.

const LONG = /\d{16}/; // a number of JavaScript is exact up to 15 digits
const INTEGER = /^-?\d+$/;
const TOKEN = /"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;
/** Deeper texts stay as they are: their indentation would be many times as long as they are. */
const DEPTH_MAX = 100;

/** Returns the value of a JSON text, with integers beyond ±2^53 as bigint. Throws SyntaxError. */
export function parseExactly(text: string): unknown {
  // Browsers before 2025 may not pass the source to the function: they round, as always.
  return LONG.test(text) ? JSON.parse(text, exactNumber) : JSON.parse(text);
}

function exactNumber(_name: string, value: unknown, context?: { source?: string }): unknown {
  const source = context?.source;
  if (typeof value !== "number" || Number.isSafeInteger(value) || source === undefined) return value;
  return INTEGER.test(source) ? BigInt(source) : value;
}

/** Returns a value as JSON in one line; a bigint as a number. */
export function exactText(value: unknown): string {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(exactText).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const fields = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${exactText(one)}`);
  return `{${fields.join(",")}}`;
}

/** Returns a JSON text in another layout, its numbers as they are written. Throws SyntaxError.
 *
 * `indent`: spaces for each level; 0: everything in one line.
 */
export function laidOutJson(text: string, indent: number): string {
  JSON.parse(text);
  const tokens = text.match(TOKEN) ?? [];
  const parts: string[] = [];
  let depth = 0;
  const newLine = (): string => (indent === 0 ? "" : `\n${" ".repeat(indent * depth)}`);
  tokens.forEach((token, at) => {
    if (token === "{" || token === "[") {
      depth += 1;
      if (indent > 0 && depth > DEPTH_MAX) throw new SyntaxError(`it has more than ${DEPTH_MAX} levels`);
      parts.push(token);
      if (!isEnd(tokens[at + 1])) parts.push(newLine());
    } else if (isEnd(token)) {
      depth -= 1;
      const before = tokens[at - 1];
      parts.push(before === "{" || before === "[" ? token : newLine() + token);
    } else if (token === ",") parts.push(token, newLine());
    else if (token === ":") parts.push(indent === 0 ? token : ": ");
    else parts.push(token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token);
  });
  return parts.join("");
}

const isEnd = (token: string | undefined): boolean => token === "}" || token === "]";
