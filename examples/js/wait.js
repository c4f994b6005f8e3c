// Pauses that grow, with jitter, so that many devices do not come at once.

export function backOff(first = 100, most = 10_000) {
  let next = first;
  return {
    next() {
      const pause = next * (0.5 + Math.random());
      next = Math.min(next * 1.5, most);
      return pause;
    },
    reset() {
      next = first;
    },
  };
}

/** Resolves after ms, or when signal aborts. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done);
  });
}
