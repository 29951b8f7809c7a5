// A browser starts no worker for a page that was opened as a file. Then this runs the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const address = new URL(url, location.href).href.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
      // The search speaks to its page by postMessage, which in a frame would speak to the frame itself.
      frame.srcdoc = `<script>window.postMessage = (data) => frameElement.tell(data)</script><script src="${address}"></script>`;
      frame.tell = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame = frame;
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve));
      const attach = () => document.body.append(frame);
      document.body ? attach() : document.addEventListener("DOMContentLoaded", attach);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }

    set onmessage(listener) {
      this.addEventListener("message", listener);
    }
  };
}
