// Switches layers and classes, enlarges pictures, lists classes. gallery.js and marks.js are the rest.
"use strict";

const page = document.documentElement;
const find = (selector) => document.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
const valueOf = (selector) => find(selector)?.value ?? "";
const listOf = (words) => (words ?? "").split(" ").filter(Boolean);

const toolbar = find(".toolbar");
const cards = findAll(".card");
const dialog = find("#enlarged");
const stage = find("#enlarged .stage");
const hiddenClasses = new Set();

// Layers are hidden by a class of the page, classes one element at a time.

function switchLayer(layer, checked) {
  page.classList.toggle(`without-${layer}`, !checked);
  for (const box of findAll(`[data-layer="${layer}"]`)) {
    box.checked = checked;
  }
}

function hideClasses(root) {
  for (const element of findAll("[data-class]", root)) {
    element.classList.toggle("off", hiddenClasses.has(element.dataset.class));
  }
}

function switchClasses(boxes, checked) {
  for (const box of boxes) {
    box.checked = checked;
    if (checked) {
      hiddenClasses.delete(box.dataset.switch);
    } else {
      hiddenClasses.add(box.dataset.switch);
    }
  }
  hideClasses(document);
}

// Labels have the same size however large the picture is. Each goes to the first corner of its box
// where it covers no other; without such a corner it is hidden.

const LETTERS = 12;
const TAG_HEIGHT = 1.3;

function placeTags(root) {
  for (const picture of findAll(".picture", root)) {
    const scale = picture.getScreenCTM()?.a;
    if (scale && picture.getClientRects().length) {
      picture.setAttribute("font-size", LETTERS / scale);
      placeTagsOf(picture, LETTERS / scale);
    }
  }
}

function placeTagsOf(picture, em) {
  const view = picture.viewBox.baseVal;
  const taken = [];
  const showsAll = stage.contains(picture);
  for (const tag of picture.querySelectorAll(".tag")) {
    const box = picture.querySelector(`rect.layer-boxes[data-object="${tag.dataset.object}"]`);
    const plate = tag.firstElementChild;
    if (!box || (tag.classList.contains("minor") && !showsAll)) {
      continue;
    }
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) =>
      parseFloat(box.getAttribute(name)),
    );
    const [wide, high] = [parseFloat(plate.getAttribute("width")) * em, TAG_HEIGHT * em];
    const corners = [y - high, y, y + height - high, y + height].flatMap((top) => [
      [x, top],
      [x + width - wide, top],
    ]);
    const free = corners.find(
      ([left, top]) =>
        left >= 0 &&
        top >= 0 &&
        left + wide <= Math.max(view.width, wide) &&
        top + high <= view.height &&
        !taken.some(
          (other) =>
            left < other[0] + other[2] &&
            other[0] < left + wide &&
            top < other[1] + high &&
            other[1] < top + high,
        ),
    );
    tag.classList.toggle("crowded", !free);
    if (free) {
      taken.push([...free, wide]);
      tag.setAttribute("x", free[0] - parseFloat(plate.getAttribute("x")) * em);
      tag.setAttribute("y", free[1] - parseFloat(plate.getAttribute("y")) * em);
    }
  }
}

// Enlarging: a picture of the gallery, of a finding, of duplicates, or of a reject.

let enlarged = null;

function enlarge(opener) {
  enlarged = opener;
  const item = opener.closest(".item");
  // A finding shows the picture that is in the gallery.
  const source = item.dataset.card ? document.getElementById(item.dataset.card) : item;
  const drawing = source.querySelector(".open").firstElementChild.cloneNode(true);
  const details = [".chips", ".captions", ".problem", ".twin"].flatMap((each) => findAll(each, source));
  find("#enlarged-title").textContent = item.querySelector(".key").textContent;
  drawing.querySelector("[id]")?.removeAttribute("id");
  stage.replaceChildren(drawing);
  find("#enlarged .details").replaceChildren(
    ...details.map((each) => each.cloneNode(true)),
    ...findAll("template", source).map((each) => each.content.cloneNode(true)),
  );
  find("#enlarged-layers").replaceChildren(
    ...findAll(".toolbar .layers").map((each) => each.cloneNode(true)),
  );
  find("#enlarged-mark").replaceChildren(
    ...findAll(".mark", item).map((each) => each.cloneNode(true)),
  );
  showMarks(dialog);
  hideClasses(dialog);
  if (!dialog.open) {
    dialog.showModal();
  }
  dialog.scrollTop = 0;
  zoom(1);
  light(lasting());
  watchScrolling();
}

function step(by) {
  const isCard = enlarged.closest(".card") !== null;
  // The gallery goes on with its next page.
  const all = isCard
    ? cards.filter((card) => !card.hidden).map((card) => card.querySelector(".open"))
    : findAll(".open", enlarged.closest("section")).filter((each) => each.getClientRects().length);
  const index = (all.indexOf(enlarged) + by + all.length) % all.length;
  if (isCard) {
    pageNumber = Math.floor(index / PAGE);
    turnPage(0);
  }
  enlarge(all[index]);
}

// Zooming.

const MOST_ZOOM = 8;
let factor = 1;

function zoom(to) {
  const [x, y] = [stage.scrollLeft + stage.clientWidth / 2, stage.scrollTop + stage.clientHeight / 2];
  const grown = to / factor;
  factor = to;
  stage.classList.toggle("zoomed", factor > 1);
  stage.style.setProperty("--zoom", factor);
  stage.scrollTo(x * grown - stage.clientWidth / 2, y * grown - stage.clientHeight / 2);
  find("#zoom-out").disabled = factor === 1;
  find("#zoom-in").disabled = factor === MOST_ZOOM;
  placeTags(stage);
}

// Pointing at a row of the list of objects highlights its box, and the other way round.

function light(objects) {
  const wanted = new Set(objects);
  for (const element of findAll("[data-object]", dialog)) {
    element.classList.toggle("lit", wanted.has(element.dataset.object));
  }
  stage.classList.toggle("lights", wanted.size > 0);
}

const pressed = () => findAll("[aria-pressed=true]", dialog).map((each) => each.closest("tr").dataset.object);

// While nothing is pointed at, the pressed rows or else the objects of the finding are highlighted.
const lasting = () => (pressed().length ? pressed() : listOf(enlarged.dataset.objects));

function press(row) {
  const button = row.querySelector("button");
  button.ariaPressed = button.ariaPressed !== "true";
  light(lasting());
}

for (const kind of ["pointerover", "focusin"]) {
  dialog.addEventListener(kind, ({ target }) => {
    const around = target.closest?.("[data-object], [data-objects]");
    if (around && !around.closest("#enlarged-layers")) {
      light([...pressed(), ...listOf(around.dataset.objects ?? around.dataset.object)]);
    } else if (kind === "pointerover") {
      light(lasting());
    }
  });
}

dialog.addEventListener("click", ({ target }) => {
  const row = target.closest(".objects tr[data-object]");
  const box = target.closest(".stage [data-object]");
  if (row) {
    press(row);
  } else if (box) {
    const itsRow = find(`#enlarged .objects tr[data-object="${box.dataset.object}"]`);
    if (itsRow) {
      press(itsRow);
      itsRow.scrollIntoView({ block: "nearest" });
    }
  } else if (target === dialog) {
    dialog.close();
  }
});

dialog.addEventListener("close", () => {
  enlarged?.focus();
  stage.replaceChildren();
});
dialog.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const scrolls = target === stage && factor > 1;
  if ((key === "ArrowLeft" || key === "ArrowRight") && !scrolls) {
    event.preventDefault();
    step(key === "ArrowLeft" ? -1 : 1);
  } else if (key === "+" && factor < MOST_ZOOM) {
    zoom(2 * factor);
  } else if (key === "-" && factor > 1) {
    zoom(factor / 2);
  } else if (key === "m") {
    find("#enlarged-mark input")?.click();
  }
});
find("#close").addEventListener("click", () => dialog.close());
find("#previous").addEventListener("click", () => step(-1));
find("#next").addEventListener("click", () => step(1));
find("#zoom-in").addEventListener("click", () => zoom(2 * factor));
find("#zoom-out").addEventListener("click", () => zoom(factor / 2));

// The list of classes can be searched and sorted.

function listClasses() {
  const table = find(".class-chart tbody");
  const more = findAll(".class-chart details tbody tr");
  const first = table.rows.length;
  table.append(...more);
  find(".class-chart details")?.remove();
  const rows = [...table.rows];
  const nameOf = (row) => row.querySelector("bdi").textContent.toLowerCase();
  const orders = {
    most: (one, other) => other.dataset.count - one.dataset.count,
    least: (one, other) => one.dataset.count - other.dataset.count,
    name: (one, other) => nameOf(one).localeCompare(nameOf(other)),
  };
  const button = find("#more-classes");
  let isWhole = false;
  const show = () => {
    const text = valueOf("#class-search").toLowerCase();
    const sorted = [...rows].sort(orders[valueOf("#class-order")]);
    const matching = sorted.filter((row) => nameOf(row).includes(text));
    table.append(...sorted);
    for (const row of rows) {
      row.hidden = true;
    }
    matching.forEach((row, index) => (row.hidden = !isWhole && index >= first));
    const shown = find("#classes-shown");
    shown.textContent = `${matching.length} of ${shown.dataset.total} classes`;
    button.hidden = isWhole || matching.length <= first;
    button.textContent = `Show all ${matching.length}`;
  };
  button.addEventListener("click", () => {
    isWhole = true;
    show();
  });
  const tools = find("#class-tools");
  tools.hidden = rows.length < 8;
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.addEventListener("input", show);
  show();
}

// Elements that scroll can be focused, so that arrow keys scroll them.

function watchScrolling() {
  for (const element of findAll(".scroll, .classes ul, nav ul")) {
    const scrolls =
      element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight;
    if (scrolls) {
      element.tabIndex = 0;
    } else {
      element.removeAttribute("tabindex");
    }
  }
}

// Links to something folded unfold it.

function unfold(target) {
  for (let each = target?.closest("details"); each; each = each.parentElement.closest("details")) {
    each.open = true;
  }
  target?.scrollIntoView();
}

document.addEventListener("input", ({ target }) => {
  if (target.dataset.layer) {
    switchLayer(target.dataset.layer, target.checked);
  } else if (target.dataset.mark !== undefined) {
    mark(target);
  }
});

document.addEventListener("click", ({ target }) => {
  const opener = target.closest(".open");
  if (opener) {
    enlarge(opener);
  }
});

window.addEventListener("resize", () => {
  placeTags(document);
  watchScrolling();
});
document.addEventListener("toggle", watchScrolling, true);

if (find("#class-tools")) {
  listClasses();
}
placeTags(document);
watchScrolling();
