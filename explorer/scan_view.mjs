// The scan over chunks as an animation. Its sixteen steps are buttons: each press changes what a step does.

import { KEEP, MINUS, pictures, PLUS } from "./scan.mjs";

const SIGNS = { [KEEP]: "\u00b7", [PLUS]: "+", [MINUS]: "\u2212" };
const WORDS = { [KEEP]: "keep", [PLUS]: "write plus", [MINUS]: "write minus" };
const NEXT = { [KEEP]: PLUS, [PLUS]: MINUS, [MINUS]: KEEP };
const FIRST = [PLUS, KEEP, KEEP, MINUS, KEEP, KEEP, KEEP, KEEP, KEEP, PLUS, MINUS, KEEP, KEEP, KEEP, KEEP, PLUS];
const NAMES = { steps: "steps", maps: "composed", carries: "enters the chunk", states: "states" };
const PHASES = {
  ready: "Each step keeps the state or writes a sign: two bits. Press a step to change it.",
  compose: "All chunks at once: compose the steps so far. The later write wins.",
  carry: "From chunk to chunk: two bits of each are enough to know the state that enters it.",
  states: "All chunks at once: fill in what was kept. Every state is known.",
};

export class ScanView {
  constructor(root) {
    this.steps = [...FIRST];
    this.shown = 0;
    this.timer = 0;
    this.part = (name) => root.querySelector(`[data-scan=${name}]`);
    this.part("play").addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.part("step").addEventListener("click", () => {
      this.pause();
      this.show((this.shown + 1) % this.all.length);
    });
    this.part("chunks").addEventListener("change", () => this.change());
    this.build();
    this.change();
  }

  /** Four rows: the steps, what they do together, the state that enters each chunk, the states. */
  build() {
    const line = (name) => {
      const row = document.createElement("div");
      row.className = `row ${name}`;
      row.dataset.name = NAMES[name];
      this.part("table").append(row);
      return row;
    };
    const cells = (name, kind) => {
      const row = line(name);
      this.steps.forEach(() => row.append(document.createElement(kind)));
      for (const cell of row.children) cell.className = "cell";
      return row;
    };
    this.stepsRow = cells("steps", "button");
    this.mapsRow = cells("maps", "span");
    this.carriesRow = line("carries");
    this.statesRow = cells("states", "span");
    [...this.stepsRow.children].forEach((cell, t) => cell.addEventListener("click", () => this.cycle(t)));
  }

  cycle(t) {
    this.steps[t] = NEXT[this.steps[t]];
    this.change();
  }

  change() {
    this.pause();
    this.chunks = Number(this.part("chunks").value);
    this.all = pictures(this.steps, this.chunks);
    this.show(0);
  }

  play() {
    if (this.shown === this.all.length - 1) this.show(0);
    this.part("play").textContent = "Pause";
    this.timer = setInterval(() => {
      this.show(this.shown + 1);
      if (this.shown === this.all.length - 1) this.pause();
    }, 650);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.part("play").textContent = "Play";
  }

  show(number) {
    this.shown = number;
    const picture = this.all[number];
    const size = this.steps.length / this.chunks;
    this.steps.forEach((step, t) => {
      const start = t % size === 0 && t > 0;
      const cells = [[this.stepsRow, step], [this.mapsRow, picture.maps[t]], [this.statesRow, picture.states[t]]];
      for (const [row, value] of cells) {
        const cell = row.children[t];
        cell.textContent = value === null ? "" : SIGNS[value];
        cell.classList.toggle("start", start);
        for (const [name, sign] of [["plus", PLUS], ["minus", MINUS]]) cell.classList.toggle(name, value === sign);
        cell.classList.toggle("now", row === this.nowRow(picture) && this.isNow(picture, t, size));
      }
      this.stepsRow.children[t].setAttribute("aria-label", `step ${t + 1}: ${WORDS[step]}`);
    });
    this.showCarries(picture, size);
    this.part("words").textContent = PHASES[picture.phase];
    const time = this.all.length - 1;
    this.part("count").textContent = `time ${number} of ${time}; one step after the other takes ${this.steps.length}`;
  }

  nowRow(picture) {
    return { compose: this.mapsRow, carry: this.mapsRow, states: this.statesRow }[picture.phase];
  }

  /** While a state is carried into chunk c, the last map of the chunk before is at work. */
  isNow(picture, t, size) {
    return picture.phase === "carry" ? t === picture.now[0] * size - 1 : picture.now.includes(t);
  }

  showCarries(picture, size) {
    this.carriesRow.replaceChildren();
    picture.carries.forEach((carry, c) => {
      const cell = document.createElement("span");
      cell.className = "carry" + (carry === PLUS ? " plus" : carry === MINUS ? " minus" : "");
      cell.classList.toggle("now", picture.phase === "carry" && picture.now[0] === c);
      cell.style.gridColumn = `${c * size + 1} / span ${size}`;
      cell.textContent = carry === null ? "?" : SIGNS[carry];
      this.carriesRow.append(cell);
    });
  }
}
