// Draws every chart of the page from the JSON beside it, in the colors of the page, and again when those change.
"use strict";

const charts = [...document.querySelectorAll(".chart")];
const dark = matchMedia("(prefers-color-scheme: dark)");

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function themedTrace(trace, i) {
  const own = color(`series-${i % 6}`);
  return { ...trace, line: { ...trace.line, color: own }, marker: { ...trace.marker, color: own } };
}

function themedLayout(layout) {
  const [ink, soft, line, card] = ["ink", "soft", "line", "card"].map(color);
  const axis = {
    gridcolor: line, linecolor: line, zeroline: false, automargin: true, tickfont: { color: soft },
    ticks: "",
  };
  const title = (text) => ({ text, standoff: 8, font: { color: soft, size: 12 } });
  return {
    ...layout,
    xaxis: { ...layout.xaxis, ...axis, showgrid: false, showline: true, title: title(layout.xaxis.title.text) },
    yaxis: { ...layout.yaxis, ...axis, title: title(layout.yaxis.title.text) },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 12, r: 16, t: 8, b: 12 },
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif", size: 12, color: ink },
    hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink }, namelength: 40 },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { color: ink } },
  };
}

function draw() {
  for (const chart of charts) {
    const { data, layout } = JSON.parse(chart.nextElementSibling.textContent);
    Plotly.react(chart, data.map(themedTrace), themedLayout(layout), { responsive: true, displayModeBar: false });
  }
}

draw();
dark.addEventListener("change", draw);
