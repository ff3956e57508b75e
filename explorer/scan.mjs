// The scan over chunks, as pictures to show one after the other.
// A step of a BMRU is one of three maps of its state, two bits: keep it, or write plus, or write minus.

export const KEEP = 0, PLUS = 1, MINUS = -1;

/** First one map, then the other: the later write wins. Associative, so chunks can be composed in any grouping. */
export function compose(first, then) {
  return then === KEEP ? first : then;
}

/** The pictures of a scan over steps cut into chunks: `maps[t]` is what the steps of t's chunk up to t do together,
 * `carries[c]` the state before chunk c, `states[t]` the state after step t; null where it is not known yet.
 * `now` lists the cells at work. All chunks work at the same time, so a picture is one unit of time. */
export function pictures(steps, chunks, start = MINUS) {
  const T = steps.length, size = T / chunks;
  const blank = (n) => Array(n).fill(null);
  const picture = { phase: "ready", maps: blank(T), carries: blank(chunks), states: blank(T), now: [] };
  const shown = [picture];
  const show = (change) => shown.push({ ...shown[shown.length - 1], ...change });
  for (let i = 0; i < size; i++) {
    const maps = [...shown[shown.length - 1].maps];
    const now = [];
    for (let c = 0; c < chunks; c++) {
      const t = c * size + i;
      maps[t] = i === 0 ? steps[t] : compose(maps[t - 1], steps[t]);
      now.push(t);
    }
    show({ phase: "compose", maps, now });
  }
  for (let c = 0; c < chunks; c++) {
    const { maps, carries } = shown[shown.length - 1];
    const next = [...carries];
    next[c] = c === 0 ? start : compose(carries[c - 1], maps[c * size - 1]);
    show({ phase: "carry", carries: next, now: [c] });
  }
  const { maps, carries } = shown[shown.length - 1];
  const states = maps.map((map, t) => compose(carries[Math.floor(t / size)], map));
  show({ phase: "states", states, now: [...states.keys()] });
  return shown;
}
