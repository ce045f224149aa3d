// Draws the curves of a report with plotly.js, and sorts its tables. `DATA` is written by page.py.
const chosen = { metric: DATA.metric, axis: "env_steps", runs: DATA.few };
const hidden = new Set(); // "group" or "group/run", by their numbers
const palette = ["#1f77b4", "#e4572e", "#2a9d5c", "#8e5bd0", "#b8860b", "#d1458f", "#1aa6b7", "#7a6a5a", "#5a7d0b", "#6c757d"];
const dashes = ["solid", "dash", "dot"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);
// An algorithm has the same colour in each environment.
const labels = [...new Set(DATA.groups.map((group) => group.label))];
const place = (g) => labels.indexOf(DATA.groups[g].label);
const color = (g) => palette[place(g) % palette.length];
const dash = (g) => dashes[Math.floor(place(g) / palette.length) % dashes.length];

function make(parent, tag, attributes = {}, text = "") {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(text);
  parent.append(node);
  return node;
}

// The curves of one environment as plotly's traces: of each group the mean, its interval, and its runs.
function traces(env) {
  const all = [];
  DATA.groups.forEach((group, g) => {
    const curve = group.curves[chosen.metric]?.[chosen.axis];
    if (group.env !== env || !curve || hidden.has(`${g}`)) return;
    const line = { color: color(g), dash: dash(g), width: 2.2 };
    const common = { legendgroup: `${g}`, showlegend: false, mode: "lines" };
    if (curve.low) {
      const edge = { ...common, x: curve.at, hoverinfo: "skip", line: { width: 0 } };
      all.push({ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: `${color(g)}33` });
    }
    const marked = (x) => (x.length <= 30 ? "lines+markers" : "lines");
    all.push({ ...common, mode: marked(curve.at), x: curve.at, y: curve.mean, name: group.label, line, hovertemplate: "%{y:.5~g}" });
    if (!chosen.runs || curve.runs.length < 2) return;
    curve.runs.forEach(([x, y], r) => {
      if (hidden.has(`${g}/${r}`)) return;
      const name = `${group.label}, ${group.runs[r]}`;
      // A run shows its nearest record, which may be far from the pointer.
      const run = { mode: marked(x), marker: { size: 4 }, opacity: 0.45, line: { ...line, width: 1 } };
      all.push({ ...common, ...run, x, y, name, hovertemplate: "%{y:.5~g} at %{x:,.5~r}" });
    });
  });
  return all;
}

function draw() {
  const style = getComputedStyle(document.body);
  const [ink, faint, paper] = ["--ink", "--faint", "--paper"].map((name) => style.getPropertyValue(name).trim());
  const about = DATA.metrics[chosen.metric];
  element("about-metric").textContent = about.help;
  for (const env of DATA.envs) {
    const node = element(`plot-${DATA.envs.indexOf(env)}`);
    const drawn = traces(env);
    // The pointer shows the values of all lines, or that of the nearest one of many.
    const all = drawn.filter((trace) => trace.hovertemplate).length <= 12;
    if (!all) for (const trace of drawn) trace.hovertemplate &&= "%{x:,.5~r}: %{y:.5~g}";
    const axis = { gridcolor: faint, zerolinecolor: faint, linecolor: faint, automargin: true };
    const layout = {
      title: { text: env, font: { size: 15 } },
      font: { color: ink, family: "system-ui, sans-serif", size: 13 },
      paper_bgcolor: paper, plot_bgcolor: paper,
      margin: { l: 10, r: 10, t: 40, b: 10 },
      height: 400,
      hovermode: all ? "x unified" : "closest", hoverdistance: all ? 100 : 20,
      hoverlabel: { bgcolor: paper, namelength: -1 },
      xaxis: { ...axis, title: { text: DATA.axes[chosen.axis] }, hoverformat: ",.5~r" },
      yaxis: { ...axis, title: { text: about.unit ? `${chosen.metric} [${about.unit}]` : chosen.metric } },
    };
    Plotly.react(node, drawn, layout, { responsive: true, displaylogo: false });
  }
}

function controls() {
  const metric = make(make(element("controls"), "label", {}, "Metric "), "select", { id: "metric" });
  for (const name of Object.keys(DATA.metrics)) make(metric, "option", { value: name, selected: name === DATA.metric }, name);
  metric.onchange = () => { chosen.metric = metric.value; draw(); };
  const axes = make(element("controls"), "span", { role: "group", ariaLabel: "Horizontal axis" });
  for (const [axis, title] of Object.entries(DATA.axes)) {
    const label = make(axes, "label");
    const radio = make(label, "input", { type: "radio", name: "axis", value: axis, checked: axis === chosen.axis });
    label.append(title);
    radio.onchange = () => { chosen.axis = axis; draw(); };
  }
  const label = make(element("controls"), "label");
  const runs = make(label, "input", { type: "checkbox", id: "runs", checked: chosen.runs });
  label.append("single runs");
  runs.onchange = () => { chosen.runs = runs.checked; draw(); };
}

function legend() {
  const toggle = (key, parent, text) => {
    const label = make(parent, "label");
    const box = make(label, "input", { type: "checkbox", checked: true });
    box.dataset.key = key;
    box.onchange = () => { hidden[box.checked ? "delete" : "add"](key); draw(); };
    label.append(text);
    return box;
  };
  DATA.groups.forEach((group, g) => {
    const item = make(element("legend"), "div");
    const box = toggle(`${g}`, item, DATA.envs.length > 1 ? `${group.label} · ${group.env}` : group.label);
    box.style.accentColor = color(g);
    const style = { solid: "solid", dash: "dashed", dot: "dotted" }[dash(g)];
    make(box.parentNode, "i", {}, "").style.borderTop = `.22rem ${style} ${color(g)}`;
    if (group.runs.length < 2) return;
    const seeds = make(item, "details");
    make(seeds, "summary", {}, `${group.runs.length} runs`);
    group.runs.forEach((run, r) => toggle(`${g}/${r}`, seeds, run));
  });
}

// A click on the head of a column sorts by it: figures by value, others by text; a second click turns the order round.
function sortable(table) {
  const body = table.tBodies[0];
  const value = (row, i) => row.cells[i].textContent.trim();
  const figure = (text) => parseFloat(text.replaceAll(",", ""));
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    make(head, "button", { type: "button", title: "sort" }, head.firstChild);
    head.firstChild.onclick = () => {
      const down = head.ariaSort === "descending";
      for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
      head.ariaSort = down ? "ascending" : "descending";
      const order = (a, b) => {
        const [x, y] = [value(a, i), value(b, i)];
        const [p, q] = [figure(x), figure(y)];
        return Number.isNaN(p) || Number.isNaN(q) ? y.localeCompare(x) : q - p;
      };
      body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
    };
  });
}

controls();
legend();
DATA.envs.forEach((_, i) => make(element("plots"), "div", { id: `plot-${i}`, className: "plot" }));
draw();
dark.addEventListener("change", draw);
document.querySelectorAll("table").forEach(sortable);
