// The gallery: which pictures it shows, in which order, on which page.

const PAGE = 40;
let pageNumber = 0;
let bar = null;

const has = (list, word) => word === "" || list.split(" ").includes(word);
const shownCards = () => cards.filter((card) => !card.hidden);

function filter() {
  pageNumber = 0;
  const split = valueOf("#filter-split");
  const text = valueOf("#filter-name").toLowerCase();
  for (const card of cards) {
    card.hidden =
      (split !== "" && card.dataset.split !== split) ||
      !has(card.dataset.classes, valueOf("#filter-class")) ||
      !has(card.dataset.kinds, valueOf("#filter-kind")) ||
      !has(card.dataset.bars, bar?.dataset.showBar ?? "") ||
      !card.querySelector(".key").textContent.toLowerCase().includes(text);
  }
  sort();
  turnPage(0);
}

function turnPage(by) {
  const shown = shownCards();
  const pages = Math.ceil(shown.length / PAGE);
  pageNumber = Math.max(0, Math.min(pages - 1, pageNumber + by));
  shown.forEach((card, index) => {
    card.classList.toggle("beyond", Math.floor(index / PAGE) !== pageNumber);
  });
  find("#shown").textContent = `${shown.length} of ${cards.length} pictures`;
  find("#nothing").hidden = shown.length > 0;
  find(".pages").hidden = pages < 2;
  find("#page-number").textContent = `page ${pageNumber + 1} of ${pages}`;
  find("#page-back").disabled = pageNumber === 0;
  find("#page-on").disabled = pageNumber === pages - 1;
  placeTags(find(".cards"));
}

function setBar(link) {
  bar = link ?? null;
  const button = find("#filter-bar");
  button.hidden = bar === null;
  button.textContent = `${bar?.dataset.words} ×`;
  button.ariaLabel = `${bar?.dataset.words}: show others, too`;
}

// Strengths of different kinds cannot be compared: a picture is as strong as its best rank in a kind.

const ranks = new Map();
const places = new Map();

const strengthOf = ({ dataset }, kind) =>
  Number(listOf(dataset.strengths)[listOf(dataset.kinds).indexOf(kind)] ?? -1);

function rankCards() {
  const kinds = new Set(cards.flatMap((card) => listOf(card.dataset.kinds)));
  cards.forEach((card, place) => places.set(card, place));
  for (const kind of kinds) {
    const found = cards.filter((card) => has(card.dataset.kinds, kind));
    found.sort((one, other) => strengthOf(other, kind) - strengthOf(one, kind));
    found.forEach((card, rank) => ranks.set(card, Math.min(rank, ranks.get(card) ?? rank)));
  }
}

const rankOf = (card) => ranks.get(card) ?? cards.length;
const differ = (one, other, name) => one.dataset[name] - other.dataset[name];
const ORDERS = {
  "": () => 0,
  strongest: (one, other) => {
    const kind = valueOf("#filter-kind");
    return kind ? strengthOf(other, kind) - strengthOf(one, kind) : rankOf(one) - rankOf(other);
  },
  most: (one, other) => differ(other, one, "count"),
  fewest: (one, other) => differ(one, other, "count"),
  largest: (one, other) => differ(other, one, "pixels"),
  smallest: (one, other) => differ(one, other, "pixels"),
};

function sort() {
  const before = [...cards];
  const order = ORDERS[valueOf("#order")];
  cards.sort((one, other) => order(one, other) || places.get(one) - places.get(other));
  if (cards.some((card, index) => card !== before[index])) {
    find(".cards").append(...cards);
  }
}

// The address holds the view, so that a link or a bookmark opens it again. Names stay the same when
// the page is written again; numbers may not.

const VIEW = "#gallery?";
const CONTROLS = {
  split: "#filter-split",
  class: "#filter-class",
  kind: "#filter-kind",
  name: "#filter-name",
  sort: "#order",
};
const nameOf = (option) => option?.dataset.name ?? option?.value ?? "";

function addressOf(words) {
  const view = new URLSearchParams(Object.entries(words).filter(([, word]) => word));
  return view.size ? VIEW + view : "#gallery";
}

function keepView() {
  const words = { bar: bar?.dataset.words, page: pageNumber && pageNumber + 1 };
  for (const [name, selector] of Object.entries(CONTROLS)) {
    const control = find(selector);
    words[name] = control?.options ? nameOf(control.selectedOptions[0]) : control?.value;
  }
  try {
    history.replaceState(null, "", addressOf(words));
  } catch {
    // Browsers limit how often an address changes; the next change is kept again.
  }
}

function openView() {
  const view = new URLSearchParams(location.hash.slice(VIEW.length));
  for (const [name, selector] of Object.entries(CONTROLS)) {
    const [control, word] = [find(selector), view.get(name) ?? ""];
    if (control?.options) {
      // What this page does not have is left out of the view.
      control.value = [...control.options].find((each) => nameOf(each) === word)?.value ?? "";
    } else if (control) {
      control.value = word;
    }
  }
  setBar(findAll("[data-show-bar]").find(({ dataset }) => dataset.words === view.get("bar")));
  filter();
  turnPage((parseInt(view.get("page"), 10) || 1) - 1);
  find("#gallery-title").focus();
}

// Links of bars, classes, splits and findings lead to views of the gallery.

function aim(link) {
  const { showSplit, showClass, showKind, words } = link.dataset;
  const optionOf = (selector, value) => find(`${selector} option[value="${value}"]`);
  link.hash = addressOf({
    split: showSplit && nameOf(optionOf("#filter-split", showSplit)),
    class: showClass && nameOf(optionOf("#filter-class", showClass)),
    kind: showKind,
    bar: words,
  });
}

// A link to a card shows it, whatever the filters hide.

function showCard(card) {
  if (card.hidden) {
    for (const selector of Object.values(CONTROLS)) {
      if (find(selector)) {
        find(selector).value = "";
      }
    }
    setBar();
    filter();
  }
  pageNumber = Math.floor(shownCards().indexOf(card) / PAGE);
  turnPage(0);
  card.scrollIntoView();
  card.querySelector(".open").focus({ preventScroll: true });
}

function followAddress() {
  const target = document.getElementById(location.hash.slice(1));
  if (toolbar && location.hash.startsWith(VIEW)) {
    openView();
  } else if (cards.includes(target)) {
    showCard(target);
  } else {
    unfold(target);
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link?.closest("dialog")) {
    // The other picture of a pair is enlarged in place of this one.
    event.preventDefault();
    enlarge(document.getElementById(link.hash.slice(1)).querySelector(".open"));
  } else if (link && link.hash === location.hash) {
    followAddress();
  }
});
window.addEventListener("hashchange", followAddress);

function startGallery() {
  rankCards();
  toolbar.hidden = false;
  toolbar.addEventListener("submit", (event) => event.preventDefault());
  toolbar.addEventListener("input", ({ target }) => {
    if (target.dataset.switch) {
      switchClasses([target], target.checked);
    } else if (!target.dataset.layer) {
      filter();
      keepView();
    }
  });
  find("#filter-bar").addEventListener("click", () => {
    setBar();
    filter();
    keepView();
    find("#gallery-title").focus({ preventScroll: true });
  });
  for (const [selector, by] of [["#page-back", -1], ["#page-on", 1]]) {
    find(selector).addEventListener("click", () => {
      turnPage(by);
      keepView();
      // The button may be disabled now; the first picture comes next for the keyboard, too.
      find(".cards").scrollIntoView();
      find(".card:not([hidden], .beyond) .open").focus({ preventScroll: true });
    });
  }
  const switches = findAll("[data-switch]");
  find("#all-classes")?.addEventListener("click", () => switchClasses(switches, true));
  find("#no-classes")?.addEventListener("click", () => switchClasses(switches, false));
  findAll('a[href="#gallery-title"]').forEach(aim);
  filter();
}

if (toolbar) {
  startGallery();
}
if (location.hash) {
  followAddress();
}
