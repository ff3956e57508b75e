// The page: one record of what is set, and all views drawn from it.

import { FoldView } from "./fold_view.mjs";
import { bmruStep, exactStep, fold, lruStep, run } from "./law.mjs";
import { ScanView } from "./scan_view.mjs";
import { LENGTH, noise, SIGNALS } from "./signal.mjs";
import { SignalView, StatesView } from "./time_view.mjs";

const find = (id) => document.getElementById(id);
const settings = { beta: 1.5, alpha: 1, radius: 0.97, noise: 0 };
const page = { signal: [...SIGNALS["Two pulses"]], cursor: LENGTH - 1, seed: 1, playing: 0, due: false };

/** Everything the views show, from the settings and the signal. */
function compute() {
  const { beta, alpha, radius } = settings;
  const random = noise(page.seed);
  const inputs = page.signal.map((x, t) => x + settings.noise * random[t]);
  const states = {
    lru: run((h, x) => lruStep(h, x, radius), inputs),
    bmru: run((h, x) => bmruStep(h, x, beta, alpha), inputs),
    exact: run((h, x) => exactStep(h, x, beta), inputs),
  };
  return { ...settings, signal: page.signal, cursor: page.cursor, inputs, states };
}

function draw() {
  page.due = false;
  const shown = compute();
  for (const view of views) view.draw(shown);
  describe(shown);
}

/** Draw before the next frame, once. */
function redraw() {
  if (page.due) return;
  page.due = true;
  requestAnimationFrame(draw);
}

function describe({ beta, inputs, states, cursor }) {
  const x = inputs[cursor], { x: x_c } = fold(beta);
  const inside = Math.abs(x) < x_c;
  const number = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=.*[1-9])/, "\u2212").replace("-", "");
  find("input-now").textContent = number(x);
  for (const name of ["exact", "bmru", "lru"]) find(`${name}-now`).textContent = number(states[name][cursor]);
  const words = inside
    ? `|x| is below the fold at ${number(x_c, 3)}: two stable states, and the past decides which.`
    : beta > 0
      ? `|x| is beyond the fold at ${number(x_c, 3)}: one stable state. The input writes, the past is gone.`
      : "With beta = 0 there is one stable state for every input: nothing is remembered.";
  if (find("verdict").textContent !== words) find("verdict").textContent = words; // screen readers read what changes
}

function set(name, value) {
  settings[name] = value;
  find(name).value = value;
  find(`${name}-number`).value = Number(value.toFixed(3));
  redraw();
}

function listenTo(name) {
  const range = find(name), number = find(`${name}-number`);
  range.addEventListener("input", () => set(name, Number(range.value)));
  number.addEventListener("change", () => {
    const typed = number.value === "" ? settings[name] : Number(number.value);
    set(name, Math.min(Math.max(typed, Number(range.min)), Number(range.max)));
  });
}

/** A strip chart: the newest input enters at the right. */
function push(x) {
  stop();
  page.signal = [...page.signal.slice(1), x];
  page.cursor = LENGTH - 1;
  redraw();
}

function moveCursor(t) {
  stop();
  page.cursor = t;
  redraw();
}

/** Draw a line into the signal. */
function line([t0, x0], [t1, x1]) {
  stop();
  const count = Math.max(Math.abs(t1 - t0), 1);
  for (let i = 0; i <= count; i++) page.signal[Math.round(t0 + ((t1 - t0) * i) / count)] = x0 + ((x1 - x0) * i) / count;
  page.cursor = t1;
  redraw();
}

function change(by) {
  page.signal[page.cursor] = Math.min(Math.max(page.signal[page.cursor] + by, -3), 3);
  redraw();
}

function play() {
  if (page.playing) return stop();
  if (page.cursor === LENGTH - 1) page.cursor = 0;
  find("play").textContent = "Pause";
  page.playing = setInterval(() => {
    page.cursor += 1;
    if (page.cursor >= LENGTH - 1) stop();
    redraw();
  }, 33);
}

function stop() {
  clearInterval(page.playing);
  page.playing = 0;
  find("play").textContent = "Play";
}

function chooseSignal(name) {
  stop();
  page.signal = [...SIGNALS[name]];
  redraw();
}

const views = [];
views.push(
  new FoldView(find("fold"), { push, setBeta: (beta) => set("beta", beta), redraw }),
  new SignalView(find("signal"), { draw: line, moveCursor, change, redraw }),
  new StatesView(find("states"), { moveCursor, redraw }),
);
Object.keys(settings).forEach(listenTo);
for (const name of Object.keys(SIGNALS)) {
  const button = document.createElement("button");
  button.textContent = name;
  button.addEventListener("click", () => chooseSignal(name));
  find("signals").append(button);
}
find("play").addEventListener("click", play);
find("reseed").addEventListener("click", () => {
  page.seed += 1;
  redraw();
});
new ScanView(find("scan"));
draw();
