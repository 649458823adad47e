// Browsers refuse real workers to a page opened from a disk. There, the search runs in a hidden frame instead.
(() => {
  if (location.protocol !== "file:") return;
  const later = (target, data) => setTimeout(() => target.dispatchEvent(new MessageEvent("message", { data })));

  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => later(this, data);
      const script = inside.document.createElement("script");
      script.src = address;
      script.onload = () => this.open(inside);
      inside.document.documentElement.append(script);
    }

    open(inside) {
      this.inside = inside;
      for (const data of this.waiting.splice(0)) later(inside, data);
    }

    postMessage(data) {
      if (this.inside) later(this.inside, data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
