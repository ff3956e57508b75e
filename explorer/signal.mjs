// Input signals: those to choose from, and noise that stays the same while its strength changes.

export const LENGTH = 160;

const filled = (value) => Array.from({ length: LENGTH }, (_, t) => value(t));
const between = (t, from, to) => t >= from && t < to;

export const SIGNALS = {
  "Two pulses": filled((t) => (between(t, 14, 20) ? 2 : between(t, 90, 96) ? -2 : 0)),
  "Slow wave": filled((t) => 2 * Math.sin((t / LENGTH) * 4 * Math.PI)),
  "Weak taps": filled((t) => (between(t, 10, 16) ? 2 : t > 30 && t % 20 < 8 ? -0.6 : 0)),
  "Flat": filled(() => 0),
};

/** Independent numbers of variance 1 from a seed: a small generator (mulberry32), then Box and Muller. */
export function noise(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
  };
  return filled(() => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
}
