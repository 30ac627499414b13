// Filters the gallery, switches its layers and classes, and enlarges its pictures.
"use strict";

const page = document.documentElement;
const find = (selector) => document.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

const toolbar = find(".toolbar");
const cards = findAll(".card");
const dialog = find("#enlarged");
const hiddenClasses = new Set();

// Filters: a picture is shown if it is of the split, shows the class, and has the text in its key.

const valueOf = (selector) => find(selector)?.value ?? "";

function filter() {
  const split = valueOf("#filter-split");
  const number = valueOf("#filter-class");
  const text = valueOf("#filter-name").toLowerCase();
  for (const card of cards) {
    card.hidden =
      (split !== "" && card.dataset.split !== split) ||
      (number !== "" && !card.dataset.classes.split(" ").includes(number)) ||
      !card.querySelector(".key").textContent.toLowerCase().includes(text);
  }
  const shown = cards.filter((card) => !card.hidden).length;
  find("#shown").textContent = `${shown} of ${cards.length} pictures`;
  find("#nothing").hidden = shown > 0;
}

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

// Texts in pictures have the same size however large the picture is.

function scaleTexts(root) {
  for (const picture of findAll(".picture", root)) {
    const scale = picture.getScreenCTM()?.a;
    if (scale) {
      picture.setAttribute("font-size", 12 / scale);
    }
  }
}

// Enlarging.

let enlarged = null;

function enlarge(card) {
  enlarged = card;
  const drawing = card.querySelector(".open").firstElementChild;
  const details = [".chips", ".captions", ".problem"].flatMap((each) => findAll(each, card));
  find("#enlarged-title").textContent = card.querySelector(".key").textContent;
  find("#enlarged .stage").replaceChildren(drawing.cloneNode(true));
  find("#enlarged .details").replaceChildren(
    ...details.map((each) => each.cloneNode(true)),
    card.querySelector("template").content.cloneNode(true),
  );
  find("#enlarged-layers").replaceChildren(
    ...findAll(".toolbar .layers").map((each) => each.cloneNode(true)),
  );
  hideClasses(dialog);
  if (!dialog.open) {
    dialog.showModal();
  }
  dialog.scrollTop = 0;
  scaleTexts(dialog);
}

function step(by) {
  const shown = cards.filter((card) => !card.hidden);
  enlarge(shown[(shown.indexOf(enlarged) + by + shown.length) % shown.length]);
}

dialog.addEventListener("close", () => {
  enlarged?.querySelector(".open").focus();
  find("#enlarged .stage").replaceChildren();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) {
    dialog.close();
  }
});
dialog.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    event.preventDefault();
    step(event.key === "ArrowLeft" ? -1 : 1);
  }
});
find("#close").addEventListener("click", () => dialog.close());
find("#previous").addEventListener("click", () => step(-1));
find("#next").addEventListener("click", () => step(1));

document.addEventListener("input", ({ target }) => {
  if (target.dataset.layer) {
    switchLayer(target.dataset.layer, target.checked);
  }
});

for (const card of cards) {
  card.querySelector(".open").addEventListener("click", () => enlarge(card));
}

if (toolbar) {
  const switches = findAll("[data-switch]");
  toolbar.hidden = false;
  toolbar.addEventListener("submit", (event) => event.preventDefault());
  toolbar.addEventListener("input", (event) => {
    if (event.target.dataset.switch) {
      switchClasses([event.target], event.target.checked);
    } else {
      filter();
    }
  });
  find("#all-classes")?.addEventListener("click", () => switchClasses(switches, true));
  find("#no-classes")?.addEventListener("click", () => switchClasses(switches, false));
  window.addEventListener("resize", () => scaleTexts(document));
  filter();
  scaleTexts(document);
}
