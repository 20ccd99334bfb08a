// Follows the stream of settled windows, and calls back when another window has settled.

/** Delay before another attempt where the browser gives up: 32 streams are open, or the aggregator restarts. */
const RETRY_MILLISECONDS = 10_000;

/** Starts to follow; `onWindow` is called for each window, `onState` with whether the stream is open. */
export function follow(onWindow, onState) {
  let source = null;
  let timer = null;

  function open() {
    // A filter that admits no record: the page asks for records itself, with its filters.
    source = new EventSource("/v1/flows/stream?verdict=denied&port=0&protocol=255");
    source.addEventListener("open", () => onState(true));
    source.addEventListener("flows", (event) => {
      const { window, more } = JSON.parse(event.data);
      if (!more) onWindow(window);
    });
    source.addEventListener("error", () => {
      onState(false);
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MILLISECONDS);
    });
  }

  open();
  return function stop() {
    clearTimeout(timer);
    source.close();
  };
}
