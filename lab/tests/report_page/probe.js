// In each page before anything else: remembers what went wrong, and tells how the page looks.
window.wrong = [];
addEventListener("error", function (event) { wrong.push(String(event.message)); });
addEventListener("unhandledrejection", function (event) { wrong.push(String(event.reason)); });
document.addEventListener("securitypolicyviolation", function (event) {
  wrong.push("forbidden: " + event.violatedDirective + " " + event.blockedURI);
});

window.look = function () {
  var root = document.documentElement;
  document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  var charts = Array.from(document.querySelectorAll("figure.chart > svg")).filter(function (svg) {
    return getComputedStyle(svg).display !== "none";
  });
  var overlaps = [];
  var outside = [];
  charts.forEach(function (svg) {
    var labels = Array.from(svg.querySelectorAll("text")).map(function (label) {
      return { text: label.textContent, box: label.getBoundingClientRect() };
    });
    labels.forEach(function (a, i) {
      if (a.box.left < 0 || a.box.right > root.clientWidth) { outside.push(a.text); }
      labels.slice(i + 1).forEach(function (b) {
        var wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        var high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (wide > 1 && high > 3) { overlaps.push(a.text + " / " + b.text); }
      });
    });
  });
  var empty = charts.filter(function (svg) {
    var box = svg.getBoundingClientRect();
    return box.width < 100 || box.height < 20;
  });

  function colours() {
    var style = getComputedStyle(document.body);
    return [style.color, style.backgroundColor];
  }
  function light(colour) {
    var parts = colour.match(/[\d.]+/g).slice(0, 3).map(function (part) {
      var share = part / 255;
      return share <= 0.04045 ? share / 12.92 : Math.pow((share + 0.055) / 1.055, 2.4);
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  }
  var before = colours();
  var two = before.map(light).sort(function (a, b) { return b - a; });
  document.getElementById("theme").click();
  var changed = colours()[1] !== before[1];
  document.getElementById("theme").click();
  changed = changed && colours()[1] === before[1];

  var tip = "";
  var point = charts.length ? charts[0].querySelector(".point") : null;
  if (point) {
    var box = point.getBoundingClientRect();
    charts[0].dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true
    }));
    var shown = document.querySelector(".tip");
    tip = shown.hidden ? "" : shown.textContent;
  }
  return {
    inner_width: innerWidth, scroll_width: root.scrollWidth, errors: wrong, charts: charts.length,
    empty_charts: empty.length, overlaps: overlaps, outside: outside, contrast: (two[0] + 0.05) / (two[1] + 0.05),
    ground: before[1], theme_changes: changed, tip: tip, title: document.title
  };
};
