// Marks are keys, so a picture that is shown twice is marked in both places. The browser keeps the
// marks of a dataset, each with a digest of its picture: a mark never passes to another picture of
// the same key, and pictures that are gone have none.

const marks = new Set();
const MARKS_KEY = `shardbeam marks of ${find(".marks").dataset.dataset}`;

// {key: digest} of the pictures on this page.
const markable = new Map(
  findAll("[data-mark]").map(({ dataset }) => [dataset.mark, dataset.picture]),
);

function storedMarks() {
  try {
    return new Map(JSON.parse(localStorage.getItem(MARKS_KEY) ?? "[]"));
  } catch {
    // The browser denies storage, or something else wrote there: marks last as long as the page.
    return new Map();
  }
}

function readMarks() {
  marks.clear();
  for (const [key, digest] of storedMarks()) {
    if (markable.get(key) === digest) {
      marks.add(key);
    }
  }
  showMarks(document);
}

function keepMarks() {
  // Other pages of the dataset may show other pictures: their marks stay.
  const stored = [...storedMarks()].filter(([key]) => !markable.has(key));
  const own = [...marks].map((key) => [key, markable.get(key)]);
  try {
    localStorage.setItem(MARKS_KEY, JSON.stringify([...stored, ...own]));
  } catch {
    // The same as above, or the storage is full.
  }
  showMarks(document);
}

function mark({ dataset, checked }) {
  marks[checked ? "add" : "delete"](dataset.mark);
  keepMarks();
}

function showMarks(root) {
  for (const box of findAll("[data-mark]", root)) {
    box.checked = marks.has(box.dataset.mark);
  }
  const number = marks.size;
  find("#marked").textContent = number === 1 ? "1 key is marked" : `${number} keys are marked`;
  find(".marks").hidden = number === 0;
  find("#mark-lines").value = [...marks].map((key) => `${key}\n`).join("");
}

async function copyMarks() {
  const lines = find("#mark-lines");
  try {
    await navigator.clipboard.writeText(lines.value);
    find("#marked").textContent = "Copied";
  } catch {
    // The browser refuses access to the clipboard: show the lines, so that they can be copied.
    lines.hidden = false;
    lines.focus();
    lines.select();
  }
}

find("#copy-marks").addEventListener("click", copyMarks);
find("#clear-marks").addEventListener("click", () => {
  marks.clear();
  keepMarks();
});
// Another window marks, too.
window.addEventListener("storage", readMarks);
readMarks();
