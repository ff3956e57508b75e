// The fold: all equilibria over the input, the path of the states through them, and two things to drag.

import { betaOfFold, equilibria, exactStep, fold } from "./law.mjs";
import { element, Plot } from "./plot.mjs";
import { slider } from "./slider.mjs";

const RANGE = { x: [-3, 3], y: [-1.45, 1.45] };
const LARGEST_BETA = 3;
const BETWEEN = 12; // points of the trail between two steps

const hundredths = (value) => Math.round(100 * value) / 100;

/** The way of the exact unit through the diagram. Between two steps it is that of an input which moves slowly: with a
 * constant beta it ends where the jump ends. */
function path(inputs, states, beta, cursor) {
  const points = [[inputs[0], states[0]]];
  for (let t = 1; t <= cursor; t++) {
    let h = states[t - 1];
    for (let i = 1; i <= BETWEEN && inputs[t] !== inputs[t - 1]; i++) {
      const x = inputs[t - 1] + ((inputs[t] - inputs[t - 1]) * i) / BETWEEN;
      points.push([x, (h = exactStep(h, x, beta))]);
    }
  }
  return points;
}

export class FoldView {
  /** `push(x)` is called with each new input, many times a second while it is dragged; `setBeta(beta)` with a new beta. */
  constructor(svg, { push, setBeta, redraw }) {
    const ticks = { x: [-3, -2, -1, 0, 1, 2, 3], y: [-1, 0, 1] };
    this.plot = new Plot(svg, { range: RANGE, ticks, titles: { x: "input x", y: "state h" }, redraw });
    const { inside, above } = this.plot;
    this.region = element("rect", { class: "region" }, inside);
    this.thresholds = element("path", { class: "line bmru thin" }, inside);
    this.levels = element("path", { class: "line bmru" }, inside);
    this.unstable = element("path", { class: "line exact dashed" }, inside);
    this.stable = element("path", { class: "line exact" }, inside);
    this.trail = element("path", { class: "trail" }, inside);
    this.guide = element("line", { class: "guide" }, inside);
    this.folds = [-1, 1].map((side) => this.handle("handle fold", side));
    this.dots = ["lru", "bmru", "exact"].map((name) => element("circle", { r: 6, class: `dot ${name}` }, above));
    this.input = this.handle("handle input", 0);
    this.listen(svg, push, setBeta);
  }

  handle(kind, side) {
    const group = element("g", { class: kind }, this.plot.above);
    element("circle", { r: 22, class: "grip" }, group);
    const shape = side ? { d: "M-7 0L0 -7L7 0L0 7Z" } : { d: "M0 -9L8 5L-8 5Z" };
    element("path", shape, group);
    return group;
  }

  listen(svg, push, setBeta) {
    const place = (event) => this.plot.at(event).x;
    let dragged = null, timer = 0, x = 0;
    const stop = () => {
      clearInterval(timer);
      dragged = null;
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      const held = event.target.closest(".handle.fold");
      dragged = held ? "fold" : "input";
      if (held) return;
      x = place(event);
      push(x);
      timer = setInterval(() => push(x), 30);
    });
    svg.addEventListener("pointermove", (event) => {
      if (dragged === "fold") setBeta(Math.min(hundredths(betaOfFold(Math.abs(place(event)))), LARGEST_BETA));
      if (dragged === "input") x = place(event);
    });
    svg.addEventListener("pointerup", stop);
    svg.addEventListener("pointercancel", stop);
    slider(this.input, { label: "Input x", low: RANGE.x[0], high: RANGE.x[1], step: 0.1, move: push });
    for (const group of this.folds) {
      slider(group, { label: "Fold: sets beta", low: 0, high: LARGEST_BETA, step: 0.05, move: setBeta });
    }
  }

  draw({ beta, alpha, inputs, states, cursor }) {
    this.drawCurves(beta, alpha);
    const { plot } = this;
    const x = inputs[cursor];
    this.trail.setAttribute("d", plot.path(path(inputs, states.exact, beta, cursor)));
    for (const [i, name] of ["lru", "bmru", "exact"].entries()) {
      this.dots[i].setAttribute("cx", plot.x(x));
      this.dots[i].setAttribute("cy", plot.y(states[name][cursor]));
    }
    const line = { x1: plot.x(x), x2: plot.x(x), y1: plot.y(RANGE.y[1]), y2: plot.y(RANGE.y[0]) };
    for (const [key, value] of Object.entries(line)) this.guide.setAttribute(key, value);
    const shown = Math.min(Math.max(x, RANGE.x[0]), RANGE.x[1]);
    this.input.setAttribute("transform", `translate(${plot.x(shown)} ${plot.y(RANGE.y[0]) - 8})`);
    this.input.update(x, `${x.toFixed(2)}`);
  }

  drawCurves(beta, alpha) {
    const { plot } = this;
    const { h: h_c, x: x_c } = fold(beta);
    const upper = [], lower = [], middle = [];
    const count = 240;
    for (let i = 0; i <= count; i++) {
      const x = RANGE.x[0] + (i / count) * (RANGE.x[1] - RANGE.x[0]);
      const found = equilibria(x, beta);
      if (x >= x_c || (x > -x_c && found.unstable !== null)) upper.push([x, found.upper]);
      if (x <= -x_c || (x < x_c && found.unstable !== null)) lower.push([x, found.lower]);
      if (found.unstable !== null) middle.push([x, found.unstable]);
    }
    if (x_c > 0) {
      upper.unshift([-x_c, h_c]);
      lower.push([x_c, -h_c]);
      middle.unshift([-x_c, h_c]);
      middle.push([x_c, -h_c]);
    } else if (beta <= 0) {
      lower.push(...upper.splice(0));
    }
    this.stable.setAttribute("d", plot.path(upper) + plot.path(lower));
    this.unstable.setAttribute("d", plot.path(middle));
    const [left, right] = RANGE.x;
    this.levels.setAttribute("d", plot.path([[-beta, alpha], [right, alpha], null, [left, -alpha], [beta, -alpha]]));
    this.thresholds.setAttribute("d", plot.path([[-beta, alpha], [-beta, -alpha], null, [beta, alpha], [beta, -alpha]]));
    const region = { x: plot.x(-x_c), width: plot.x(x_c) - plot.x(-x_c), y: plot.y(RANGE.y[1]), height: plot.up };
    for (const [key, value] of Object.entries(region)) this.region.setAttribute(key, value);
    for (const [i, side] of [-1, 1].entries()) {
      this.folds[i].setAttribute("transform", `translate(${plot.x(side * x_c)} ${plot.y(-side * h_c)})`);
      this.folds[i].update(beta, `beta ${beta.toFixed(2)}, fold at x = ${(side * x_c).toFixed(2)}`);
    }
  }
}
