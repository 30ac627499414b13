// Heat maps of one class, and log scales of charts.

const SIDE = 16;
const PARTS = 4;
const SHADES = 8;

function readGrid(text) {
  const counts = new Array(SIDE * SIDE).fill(0);
  for (const each of text.split(" ").filter(Boolean)) {
    const [cell, count] = each.split(":").map(Number);
    counts[cell] = count;
  }
  return counts;
}

const percent = (part, whole) => `${Math.round((100 * part) / Math.max(whole, 1))} %`;

function drawHeatMap(figure, text, name) {
  const counts = readGrid(text);
  const most = Math.max(...counts);
  const whole = counts.reduce((sum, count) => sum + count, 0);
  const rises = figure.dataset.rises !== undefined;
  const [start, end] = rises ? [0, 12] : [4, 12];
  const paths = findAll("path", figure);
  const drawn = paths.map(() => "");
  const sums = Array.from({ length: PARTS }, () => new Array(PARTS).fill(0));
  let inside = 0;
  counts.forEach((count, cell) => {
    const [row, column] = [Math.floor(cell / SIDE), cell % SIDE];
    if (count) {
      const shade = Math.ceil(SHADES * Math.sqrt(count / most));
      drawn[shade - 1] += `M${column} ${rises ? SIDE - 1 - row : row}h1v1h-1z`;
    }
    sums[Math.floor((row * PARTS) / SIDE)][Math.floor((column * PARTS) / SIDE)] += count;
    if (row >= start && row < end && column >= start && column < end) {
      inside += count;
    }
  });
  paths.forEach((path, index) => path.setAttribute("d", drawn[index]));
  figure.querySelector("svg title").textContent = `${figure.dataset.title}: ${name}`;
  figure.querySelector("[data-heat-share]").textContent = percent(inside, whole);
  figure.querySelector("[data-heat-class]").textContent = name;
  const rows = findAll("tbody tr", figure);
  rows.forEach((row, index) => {
    const part = rises ? PARTS - 1 - index : index;
    findAll("td", row).forEach((cell, column) => {
      cell.textContent = percent(sums[part][column], whole);
    });
  });
}

const heatClass = find("#heat-class");
if (heatClass) {
  const label = heatClass.closest("label");
  const show = () => {
    const chosen = heatClass.selectedOptions[0];
    for (const figure of findAll(".heat")) {
      drawHeatMap(figure, chosen.dataset[figure.dataset.map], chosen.dataset.name);
    }
  };
  label.hidden = false;
  heatClass.addEventListener("change", show);
  heatClass.selectedIndex = 0;
}

// On a log scale, a bar is as long as the logarithm of its count; its pieces keep their shares.

function scaleBars(chart, isLog) {
  const most = Number(chart.dataset.most);
  for (const bar of findAll("svg[data-count]", chart)) {
    const count = Number(bar.dataset.count);
    const factor =
      isLog && count ? (Math.log(1 + count) / Math.log(1 + most)) * (most / count) : 1;
    for (const piece of bar.children) {
      piece.dataset.x ??= piece.getAttribute("x") ?? "0";
      piece.dataset.width ??= piece.getAttribute("width");
      piece.setAttribute("x", `${parseFloat(piece.dataset.x) * factor}%`);
      piece.setAttribute("width", `${parseFloat(piece.dataset.width) * factor}%`);
    }
  }
}

for (const box of findAll("[data-log]")) {
  box.closest("label").hidden = false;
  box.checked = false;
  box.addEventListener("change", () => scaleBars(box.closest("[data-most]"), box.checked));
}
