/*<![CDATA[*/
(function () {
  "use strict";
  var root = document.documentElement;

  // Light or dark: as the system says, until somebody chooses. Where nothing may be kept, the choice ends with the page.
  var button = document.getElementById("theme");
  function remembered(theme) {
    try {
      if (theme) { localStorage.setItem("gesta-lab-theme", theme); }
      return localStorage.getItem("gesta-lab-theme");
    } catch (_) {
      return theme;
    }
  }
  function show(theme) {
    if (theme !== "light" && theme !== "dark") { return; }
    root.setAttribute("data-theme", theme);
  }
  show(remembered(null));
  button.hidden = false;
  button.addEventListener("click", function () {
    var chosen = root.getAttribute("data-theme");
    var isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    var next = isDark ? "light" : "dark";
    show(next);
    remembered(next);
  });

  // What is known about a point, beside the pointer or the finger, at once. The titles would show too, but late.
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);
  document.querySelectorAll("figure.chart svg[role=img]").forEach(function (svg) {
    var points = [];
    svg.querySelectorAll(":scope .point").forEach(function (point) {
      var title = point.querySelector(":scope > title");
      points.push({ at: point, text: title.textContent });
      title.remove();
    });
    var name = svg.querySelector(":scope > title");
    svg.setAttribute("aria-label", name.textContent);
    name.remove();
    function near(event) {
      var best = null;
      var least = 26;
      points.forEach(function (point) {
        var box = point.at.getBoundingClientRect();
        var dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
        var dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
        var distance = Math.hypot(dx, dy);
        if (distance < least) { least = distance; best = point; }
      });
      tip.hidden = best === null;
      if (best === null) { return; }
      tip.textContent = best.text;
      var left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
      var top = event.clientY - tip.offsetHeight - 12;
      tip.style.left = Math.max(8, left) + "px";
      tip.style.top = (top < 8 ? event.clientY + 18 : top) + "px";
    }
    svg.addEventListener("pointermove", near);
    svg.addEventListener("pointerdown", near);
    svg.addEventListener("pointerleave", function () { tip.hidden = true; });
  });

  // On paper nothing is folded away.
  var folded = [];
  addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () {
    folded.forEach(function (one) { one.open = false; });
  });
})();
/*]]>*/
