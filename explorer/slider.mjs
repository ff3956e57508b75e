// Any element of a picture as a slider for the keyboard and for screen readers.

const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

/** Arrow keys call `move(value)`; `element.update(value, words)` tells the element where it is. */
export function slider(element, { label, low, high, step, move }) {
  let now = 0;
  const fixed = { role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": low, "aria-valuemax": high };
  for (const [key, value] of Object.entries(fixed)) element.setAttribute(key, value);
  element.update = (value, words) => {
    now = value;
    element.setAttribute("aria-valuenow", value.toFixed(2));
    element.setAttribute("aria-valuetext", words);
  };
  element.addEventListener("keydown", (event) => {
    const ends = { Home: low, End: high };
    if (!(event.key in KEYS) && !(event.key in ends)) return;
    event.preventDefault();
    const to = ends[event.key] ?? now + KEYS[event.key] * step;
    now = Math.min(Math.max(to, low), high); // the next key may come before the next picture
    move(now);
  });
}
