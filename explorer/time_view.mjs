// Time: the input, on which one draws, and below it the states of the three units.

import { element, Plot } from "./plot.mjs";
import { LENGTH } from "./signal.mjs";
import { slider } from "./slider.mjs";

const TICKS = [0, 50, 100, 150];
const HIGHEST = 3;
const points = (values) => values.map((value, t) => [t, value]);

export class SignalView {
  /** `draw(from, to)` is called with two points [t, x] between which a line was drawn. */
  constructor(svg, { draw, moveCursor, change, redraw }) {
    const range = { x: [0, LENGTH - 1], y: [-HIGHEST, HIGHEST] };
    const titles = { x: "", y: "input x: draw here" };
    this.plot = new Plot(svg, { range, ticks: { x: TICKS, y: [-2, 0, 2] }, titles, redraw });
    this.cursor = element("line", { class: "guide" }, this.plot.inside);
    this.noisy = element("path", { class: "line noisy" }, this.plot.inside);
    this.line = element("path", { class: "line ink" }, this.plot.inside);
    this.dot = element("circle", { r: 5, class: "dot ink" }, this.plot.above);
    let last = null;
    const reach = (event) => {
      const { x, y } = this.plot.at(event);
      const next = [Math.round(x), y];
      draw(last ?? next, next);
      last = next;
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      reach(event);
    });
    svg.addEventListener("pointermove", (event) => last && reach(event));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (last = null));
    this.listen(svg, moveCursor, change);
  }

  /** Left and right move in time, up and down change the input there. */
  listen(svg, moveCursor, change) {
    slider(svg, { label: "Input over time", low: 0, high: LENGTH - 1, step: 1, move: moveCursor });
    const ups = { ArrowUp: 0.2, ArrowDown: -0.2 };
    svg.addEventListener("keydown", (event) => {
      if (!(event.key in ups)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      change(ups[event.key]);
    }, { capture: true });
  }

  draw({ signal, inputs, noise, cursor }) {
    const { plot } = this;
    this.line.setAttribute("d", plot.path(points(signal)));
    this.noisy.setAttribute("d", noise > 0 ? plot.path(points(inputs)) : "");
    place(this.cursor, plot, cursor);
    this.dot.setAttribute("cx", plot.x(cursor));
    this.dot.setAttribute("cy", plot.y(signal[cursor]));
    this.plot.svg.update(cursor, `time ${cursor}, input ${signal[cursor].toFixed(1)}`);
  }
}

export class StatesView {
  constructor(svg, { moveCursor, redraw }) {
    const range = { x: [0, LENGTH - 1], y: [-1.45, 1.45] };
    const ticks = { x: TICKS, y: [-1, 0, 1] };
    this.plot = new Plot(svg, { range, ticks, titles: { x: "time", y: "state h" }, redraw });
    this.cursor = element("line", { class: "guide" }, this.plot.inside);
    this.lines = {};
    for (const name of ["lru", "bmru", "exact"]) {
      this.lines[name] = element("path", { class: `line ${name}` }, this.plot.inside);
    }
    let held = false;
    const reach = (event) => moveCursor(Math.round(this.plot.at(event).x));
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      held = true;
      reach(event);
    });
    svg.addEventListener("pointermove", (event) => held && reach(event));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (held = false));
    slider(svg, { label: "Time", low: 0, high: LENGTH - 1, step: 1, move: moveCursor });
  }

  draw({ states, cursor }) {
    for (const [name, line] of Object.entries(this.lines)) line.setAttribute("d", this.plot.path(points(states[name])));
    place(this.cursor, this.plot, cursor);
    const words = Object.entries(states).map(([name, values]) => `${name} ${values[cursor].toFixed(2)}`);
    this.plot.svg.update(cursor, `time ${cursor}: ${words.join(", ")}`);
  }
}

function place(line, plot, cursor) {
  const [low, high] = plot.range.y;
  const ends = { x1: plot.x(cursor), x2: plot.x(cursor), y1: plot.y(high), y2: plot.y(low) };
  for (const [key, value] of Object.entries(ends)) line.setAttribute(key, value);
}
