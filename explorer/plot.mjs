// A small plot: an SVG element whose units are pixels of the screen, with axes, lines and points.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MARGIN = { left: 34, right: 12, top: 10, bottom: 30 };

export function element(name, attributes = {}, parent = null, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const minus = (text) => String(text).replace("-", "\u2212");

export class Plot {
  /** `range` is { x: [low, high], y: [low, high] }, `ticks` likewise lists numbers, `titles` names the axes. */
  constructor(svg, { range, ticks, titles, redraw }) {
    Object.assign(this, { svg, range, ticks, titles });
    this.axes = element("g", { class: "axes" }, svg);
    const clip = element("clipPath", { id: `${svg.id}-inside` }, svg);
    this.clip = element("rect", {}, clip);
    this.inside = element("g", { "clip-path": `url(#${svg.id}-inside)` }, svg);
    this.above = element("g", {}, svg);
    this.measure();
    new ResizeObserver(() => {
      if (this.measure()) redraw();
    }).observe(svg);
  }

  /** Take the size from the page; false if it is what it was. */
  measure() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (width === this.width && height === this.height) return false;
    Object.assign(this, { width, height });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const box = { x: MARGIN.left, y: MARGIN.top, width: this.across, height: this.up };
    for (const [key, value] of Object.entries(box)) this.clip.setAttribute(key, Math.max(value, 0));
    this.drawAxes();
    return true;
  }

  get across() {
    return this.width - MARGIN.left - MARGIN.right;
  }

  get up() {
    return this.height - MARGIN.top - MARGIN.bottom;
  }

  x(value) {
    const [low, high] = this.range.x;
    return MARGIN.left + ((value - low) / (high - low)) * this.across;
  }

  y(value) {
    const [low, high] = this.range.y;
    return MARGIN.top + ((high - value) / (high - low)) * this.up;
  }

  /** The numbers under a pointer, kept within the range. */
  at(event) {
    const box = this.svg.getBoundingClientRect();
    const [xs, ys] = [this.range.x, this.range.y];
    const x = xs[0] + ((event.clientX - box.left - MARGIN.left) / this.across) * (xs[1] - xs[0]);
    const y = ys[1] - ((event.clientY - box.top - MARGIN.top) / this.up) * (ys[1] - ys[0]);
    return { x: Math.min(Math.max(x, xs[0]), xs[1]), y: Math.min(Math.max(y, ys[0]), ys[1]) };
  }

  drawAxes() {
    this.axes.replaceChildren();
    const bottom = this.height - MARGIN.bottom;
    for (const tick of this.ticks.x) {
      element("line", { x1: this.x(tick), x2: this.x(tick), y1: MARGIN.top, y2: bottom, class: "grid" }, this.axes);
      element("text", { x: this.x(tick), y: bottom + 14, class: "tick middle" }, this.axes, minus(tick));
    }
    for (const tick of this.ticks.y) {
      const line = { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: this.y(tick), y2: this.y(tick) };
      element("line", { ...line, class: tick === 0 ? "zero" : "grid" }, this.axes);
      element("text", { x: MARGIN.left - 7, y: this.y(tick) + 4, class: "tick end" }, this.axes, minus(tick));
    }
    const right = { x: this.width - MARGIN.right, y: bottom + 27, class: "title end" };
    element("text", right, this.axes, this.titles.x);
    element("text", { x: MARGIN.left + 6, y: MARGIN.top + 11, class: "title" }, this.axes, this.titles.y);
  }

  /** The `d` of a path through points; null lifts the pen. */
  path(points) {
    let pen = "M";
    const parts = [];
    for (const point of points) {
      if (point === null) pen = "M";
      else {
        parts.push(`${pen}${this.x(point[0]).toFixed(1)} ${this.y(point[1]).toFixed(1)}`);
        pen = "L";
      }
    }
    return parts.join("");
  }
}
