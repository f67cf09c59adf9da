// Parts of a picture that are chosen like buttons: with the mouse, or with one tab stop and arrow keys.
import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** What all parts together need, for the `svg`. */
interface PictureProps {
  ref: RefObject<SVGSVGElement | null>;
  role: "group";
  onKeyDown: (event: KeyboardEvent) => void;
  onMouseLeave: () => void;
}

/** What one part needs, for its `g`. */
interface PartProps {
  role: "button";
  tabIndex: number;
  onClick: () => void;
  onFocus: () => void;
  onMouseEnter: () => void;
}

export interface Parts {
  /** The part below the pointer, or with the focus. */
  pointed: number | undefined;
  picture: PictureProps;
  part: (index: number) => PartProps;
}

/** Arrows, Home and End move the focus, Enter and space choose, Backspace and minus zoom out.
 *
 * `shown` is what the picture shows: with another one, the first part is the next to get the focus, and
 * gets it if a key has led there.
 */
export function useParts({
  count,
  shown,
  choose,
  out,
}: {
  count: number;
  shown: string;
  choose: (index: number) => void;
  out: () => void;
}): Parts {
  const [active, setActive] = useState(0);
  const [pointed, setPointed] = useState<number>();
  const box = useRef<SVGSVGElement>(null);
  const byKey = useRef(false);
  const focused = Math.min(active, Math.max(count - 1, 0));
  const go = (to: number): void => {
    const next = Math.min(Math.max(to, 0), count - 1);
    setActive(next);
    box.current?.querySelectorAll<SVGGElement>("[role=button]")[next]?.focus();
  };
  // Before anybody can point at a part of the new picture.
  useLayoutEffect(() => {
    setPointed(undefined);
    setActive(0);
    if (byKey.current) go(0);
    byKey.current = false;
  }, [shown]);
  const pressed = (event: KeyboardEvent): void => {
    const to = { ArrowLeft: focused - 1, ArrowRight: focused + 1, Home: 0, End: count - 1 }[event.key];
    const isIn = event.key === "Enter" || event.key === " ";
    const isOut = event.key === "Backspace" || event.key === "-";
    if (to === undefined && !isIn && !isOut) return;
    event.preventDefault();
    byKey.current = to === undefined;
    if (to !== undefined) go(to);
    else if (isOut) out();
    else if (count > 0) choose(focused);
  };
  return {
    pointed: pointed !== undefined && pointed < count ? pointed : undefined,
    picture: { ref: box, role: "group", onKeyDown: pressed, onMouseLeave: () => setPointed(undefined) },
    part: (index) => ({
      role: "button",
      tabIndex: index === focused ? 0 : -1,
      onClick: () => choose(index),
      onFocus: () => {
        setActive(index);
        setPointed(index);
      },
      onMouseEnter: () => setPointed(index),
    }),
  };
}
