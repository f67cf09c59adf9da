// A browser starts no worker for a page that is opened as a file, and the search runs in one. Such a
// page runs the worker's script in a hidden frame instead. The script uses only messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = () => undefined;
      const script = frame.contentDocument.createElement("script");
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve));
      script.src = new URL(address, location.href).href;
      frame.contentDocument.body.append(script);
      this.post = (data) => inner.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.ready.then(() => this.post(data));
    }
  };
}
