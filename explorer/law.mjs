// The laws of the page, in double precision. They are those of multistable: tests/explorer/test_law.py compares them.

/** Where the two branches of h = tanh(x + (beta + 1) h) end: x in (-x_c, x_c) has two stable states. Zeros for beta <= 0. */
export function fold(beta) {
  const root = Math.sqrt(Math.max(beta, 0));
  const length = Math.sqrt(root * root + 1);
  const y = Math.asinh(root);
  return { h: root / length, y, x: Math.max(root * length - y, 0) };
}

/** The beta whose folds are at x = -x_c and x_c, up to 8. */
export function betaOfFold(x) {
  let low = 0, high = 8;
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (fold(middle).x < x) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** The root of y - x - a tanh(y), which rises between low and high, by bisection; tanh of it. */
function rising(x, a, low, high) {
  for (let i = 0; i < 80 && low < high; i++) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high) break;
    if (middle - x - a * Math.tanh(middle) < 0) low = middle;
    else high = middle;
  }
  return Math.tanh((low + high) / 2);
}

/** The largest equilibrium, for x above the lower fold (for beta <= 0, for x >= 0). */
function largest(x, beta, y) {
  return rising(x, beta + 1, y, Math.max(y, x + Math.max(beta + 1, 0)));
}

/** The upper and the lower stable equilibrium, equal where there is one, and the unstable one between two. */
export function equilibria(x, beta) {
  const { x: x_c, y } = fold(beta);
  if (Math.abs(x) < x_c) {
    // Between the folds x + a tanh(y) - y rises: the same bisection with both signs changed.
    let low = -y, high = y;
    for (let i = 0; i < 80; i++) {
      const middle = (low + high) / 2;
      if (x + (beta + 1) * Math.tanh(middle) - middle < 0) low = middle;
      else high = middle;
    }
    return { upper: largest(x, beta, y), lower: -largest(-x, beta, y), unstable: Math.tanh((low + high) / 2) };
  }
  const only = x >= 0 ? largest(x, beta, y) : -largest(-x, beta, y);
  return { upper: only, lower: only, unstable: null };
}

/** The exact unit: the equilibrium to which the state h flows under the input x. */
export function exactStep(h, x, beta) {
  const { h: h_c, x: x_c } = fold(beta);
  const { upper, lower } = equilibria(x, beta);
  if (Math.abs(x) >= x_c) return upper;
  const climbs = h >= h_c || (Math.tanh(x + h + beta * h) >= h && h > -h_c);
  return climbs ? upper : lower;
}

/** The bistable memory recurrent unit: write the sign of x where it is strong enough, otherwise keep h. */
export function bmruStep(h, x, beta, alpha) {
  return Math.abs(x) >= Math.abs(beta) ? (x >= 0 ? alpha : -alpha) : h;
}

/** A linear recurrent unit with a real eigenvalue; a constant input is its fixed point. */
export function lruStep(h, x, radius) {
  return radius * h + (1 - radius) * x;
}

/** The states after each input. */
export function run(step, inputs, start = 0) {
  let h = start;
  return inputs.map((x) => (h = step(h, x)));
}
