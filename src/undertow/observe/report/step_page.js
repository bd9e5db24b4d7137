// The timeline of a step.  All figures drawn here are also in the page's tables.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("pictures").textContent);
  const $ = (id) => document.getElementById(id);
  if (!data.pictures.length) return;

  // Colour of each kind of mark, and a texture for readers who cannot tell the colours apart.
  const LOOKS = {
    forward: ["--forward", null], backward: ["--backward", null], script: ["--script", null],
    hook: ["--hook", "dots"], wait: ["--wait", "rising"], apply: ["--apply", "cross"],
    optimizer: ["--optimizer", "level"], "turn-wait": ["--turn", "upright"],
    push: ["--push", null], result: ["--result", "falling"], pull: ["--push", "dots"], value: ["--result", "dots"],
    report: ["--turn", "dots"],
  };
  const WORDS = {
    forward: "forward of", backward: "backward of", script: "", hook: "hands over", wait: "", apply: "", optimizer: "",
    "turn-wait": "", push: "contribution:", result: "result:", pull: "request:", value: "value:", report: "report:",
  };
  const LANES = ["thread", "out", "into"];
  const LANE_WORDS = { thread: "training thread", out: "wire out", into: "wire in" };
  const SMALLEST = 1 / 4000;  // of the step: the limit of zooming in

  const canvas = document.querySelector("#timeline canvas");
  const pen = canvas.getContext("2d");
  let picture = data.pictures[0];
  let view = { begin: 0, end: 1 };  // as fractions of the step
  let chosen = null;  // { rank, lane, index }
  let rows = [];  // { rank, lane, marks, top, height }
  let colours = {}, textures = {}, size = { width: 0, height: 0, gutter: 0 };

  // Layout

  function layOut() {
    const many = picture.ranks.length > 8;
    const heights = many ? { thread: 12, out: 6, into: 6 } : { thread: 22, out: 11, into: 11 };
    size.width = canvas.parentElement.clientWidth;
    size.gutter = size.width < 600 ? 58 : 120;
    let top = 26;
    rows = [];
    for (const rank of picture.ranks) {
      for (const lane of LANES) {
        rows.push({ rank, lane, marks: rank[lane], top, height: heights[lane] });
        top += heights[lane] + 2;
      }
      top += many ? 5 : 10;
    }
    size.height = top;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(size.width * ratio);
    canvas.height = Math.round(size.height * ratio);
    canvas.style.height = `${size.height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    colours = {};
    for (const name of ["--ink", "--paper", "--quiet", "--line", "--band", "--path", "--focus", "--on-dark"]) {
      colours[name] = read(name);
    }
    textures = {};
    for (const [kind, [colour, texture]] of Object.entries(LOOKS)) {
      colours[kind] = read(colour);
      textures[kind] = texture ? makeTexture(texture) : null;
    }
  }

  function makeTexture(texture) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = brush.fillStyle = colours["--paper"];
    brush.lineWidth = 1.2;
    brush.beginPath();
    const line = (...ends) => { brush.moveTo(ends[0], ends[1]); brush.lineTo(ends[2], ends[3]); };
    if (texture === "rising" || texture === "cross") { line(-1, 7, 7, -1); line(-1, 1, 1, -1); line(5, 7, 7, 5); }
    if (texture === "falling" || texture === "cross") { line(-1, -1, 7, 7); line(5, -1, 7, 1); line(-1, 5, 1, 7); }
    if (texture === "level") line(0, 3, 6, 3);
    if (texture === "upright") line(3, 0, 3, 6);
    if (texture === "dots") brush.arc(3, 3, 1, 0, 7), brush.fill();
    else brush.stroke();
    return pen.createPattern(tile, "repeat");
  }

  const toX = (ticks) =>
    size.gutter + ((ticks / picture.ticks - view.begin) / (view.end - view.begin)) * (size.width - size.gutter);
  const toPart = (x) =>
    view.begin + ((x - size.gutter) / (size.width - size.gutter)) * (view.end - view.begin);
  const toMs = (ticks) => (ticks / picture.ticks) * picture.length_ns / 1e6;

  // Drawing

  function draw() {
    pen.fillStyle = colours["--paper"];
    pen.fillRect(0, 0, size.width, size.height);
    drawAxis();
    pen.save();
    pen.beginPath();
    pen.rect(size.gutter, 0, size.width - size.gutter, size.height);
    pen.clip();
    rows.forEach(drawRow);
    drawSteps();
    drawPath();
    drawChosen();
    pen.restore();
    drawLabels();
    showWindow();
  }

  function drawAxis() {
    const span = toMs(picture.ticks) * (view.end - view.begin);
    const target = span / Math.max(2, (size.width - size.gutter) / 110);
    const unit = 10 ** Math.floor(Math.log10(target));
    const pace = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= target);
    const first = Math.ceil((toMs(picture.ticks) * view.begin) / pace);
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    for (let n = first; n * pace <= toMs(picture.ticks) * view.end; n++) {
      const x = toX((n * pace / toMs(picture.ticks)) * picture.ticks);
      pen.fillStyle = colours["--line"];
      pen.fillRect(Math.round(x), 18, 1, size.height);
      pen.fillStyle = colours["--quiet"];
      const digits = Math.max(0, -Math.floor(Math.log10(pace)));
      const text = `${(n * pace).toFixed(digits)} ms`;
      if (x + 3 + pen.measureText(text).width < size.width) pen.fillText(text, x + 3, 13);
    }
  }

  function drawRow(row) {
    pen.fillStyle = colours["--band"];
    pen.fillRect(size.gutter, row.top, size.width, row.height);
    for (const mark of row.marks) {
      const left = toX(mark[0]), width = Math.max(1, toX(mark[0] + mark[1]) - left);
      if (left > size.width || left + width < size.gutter) continue;
      const kind = data.kinds[mark[2]];
      pen.fillStyle = colours[kind];
      pen.fillRect(left, row.top, width, row.height);
      if (textures[kind] && width > 2) {
        pen.fillStyle = textures[kind];
        pen.fillRect(left, row.top, width, row.height);
      }
      if (width > 3) {
        pen.fillStyle = colours["--paper"];
        pen.fillRect(left + width - 1, row.top, 1, row.height);
      }
      if (width > 34 && row.height > 10) label(mark, kind, left, width, row);
    }
  }

  function label(mark, kind, left, width, row) {
    const from = Math.max(left, size.gutter), room = Math.min(left + width, size.width) - from - 8;
    pen.font = `${Math.min(12, row.height - 1)}px system-ui, sans-serif`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const text = fit(data.names[mark[3]] || kind, room);
    if (!text) return;
    if (textures[kind]) {
      pen.fillStyle = colours[kind];
      pen.fillRect(from + 2, row.top + 1, pen.measureText(text).width + 4, row.height - 2);
    }
    pen.fillStyle = kind === "script" ? colours["--ink"] : colours["--on-dark"];
    pen.fillText(text, from + 4, row.top + row.height / 2 + 0.5);
  }

  function fit(text, room) {
    if (pen.measureText(text).width <= room) return text;
    for (let length = text.length - 1; length >= 3; length--) {
      const cut = `${text.slice(0, length)}…`;
      if (pen.measureText(cut).width <= room) return cut;
    }
    return "";
  }

  function drawSteps() {
    pen.fillStyle = colours["--ink"];
    for (const row of rows) {
      if (row.lane !== "thread") continue;
      for (const time of [row.rank.begin, row.rank.end]) {
        pen.fillRect(Math.round(toX(time)) - (time ? 1 : 0), row.top - 3, 1.5, row.height + 6);
      }
    }
  }

  // The path runs along the lower edge of a thread that computes, and across the lanes while a slice is on the wire.
  function drawPath() {
    pen.strokeStyle = colours["--path"];
    pen.lineJoin = "round";
    for (const halo of [true, false]) {
      pen.lineWidth = halo ? 5 : 2.5;
      pen.strokeStyle = halo ? colours["--paper"] : colours["--path"];
      pen.beginPath();
      let started = false;
      for (const [begin, length, cause, rank, peer] of picture.path) {
        const isWire = cause === "wire" && peer >= 0;
        const isOut = isWire || cause === "queue behind other slices";
        const from = edge(rank, isOut ? "out" : "thread"), to = isWire ? edge(peer, "into") : from;
        if (from === null || to === null) continue;
        pen[started ? "lineTo" : "moveTo"](toX(begin), from);
        pen.lineTo(toX(begin + length), to);
        started = true;
      }
      pen.stroke();
    }
  }

  function edge(rank, lane) {
    const row = rows.find((one) => one.rank.rank === rank && one.lane === lane);
    return row ? row.top + (lane === "thread" ? row.height - 1.5 : row.height / 2) : null;
  }

  function drawChosen() {
    if (!chosen) return;
    const row = rows[chosen.row], mark = row.marks[chosen.index];
    if (!mark) return;
    const left = toX(mark[0]), width = Math.max(2, toX(mark[0] + mark[1]) - left);
    pen.lineWidth = 2;
    pen.strokeStyle = colours["--focus"];
    pen.strokeRect(left - 1, row.top - 1, width + 2, row.height + 2);
  }

  function drawLabels() {
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const narrow = size.gutter < 100;
    for (const row of rows) {
      if (row.lane === "thread") {
        pen.font = `600 ${row.height < 14 ? 10 : 12}px system-ui, sans-serif`;
        pen.fillStyle = colours["--ink"];
        pen.fillText(`rank ${row.rank.rank}`, 6, row.top + row.height / 2);
      } else if (row.height > 8) {
        pen.font = "11px system-ui, sans-serif";
        pen.fillStyle = colours["--quiet"];
        const short = row.lane === "out" ? "out" : "in";
        pen.fillText(narrow ? short : LANE_WORDS[row.lane], 14, row.top + row.height / 2);
      }
    }
  }

  // Descriptions in words

  function showWindow() {
    const whole = toMs(picture.ticks);
    const show = (part) => (part * whole).toFixed(whole * (view.end - view.begin) < 1 ? 4 : 2);
    $("window").textContent = `${show(view.begin)} to ${show(view.end)} ms of ${whole.toFixed(2)} ms`;
  }

  function describe(row, mark) {
    if (!mark) return `rank ${row.rank.rank}, ${LANE_WORDS[row.lane]}: nothing`;
    const kind = data.kinds[mark[2]], word = WORDS[kind], name = data.names[mark[3]];
    const times = `${toMs(mark[1]).toFixed(3)} ms, from ${toMs(mark[0]).toFixed(3)} ms`;
    const where = `rank ${row.rank.rank}, ${LANE_WORDS[row.lane]}`;
    const route = mark[4] < 0 ? "" : `${row.lane === "out" ? " to" : " from"} rank ${mark[4]}, ${bytes(mark[5])}`;
    const merged = picture.is_merged ? " (neighbours are drawn as one)" : "";
    return `${where}: ${word ? `${word} ` : ""}${name}${route}; ${times}${merged}`;
  }

  function bytes(count) {
    for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (count >= unit) return `${(count / unit).toPrecision(3)} ${name}`;
    }
    return `${count} B`;
  }

  function choose(row, index) {
    chosen = { row, index };
    $("details").textContent = describe(rows[row], rows[row].marks[index]);
    draw();
  }

  // Zoom and pan

  function show(begin, end) {
    const span = Math.min(1, Math.max(SMALLEST, end - begin));
    const start = Math.min(Math.max(0, begin), 1 - span);
    view = { begin: start, end: start + span };
    draw();
  }

  function zoom(factor, at = (view.begin + view.end) / 2) {
    const span = Math.min(1, Math.max(SMALLEST, (view.end - view.begin) * factor));
    const share = (at - view.begin) / (view.end - view.begin);
    show(at - share * span, at - share * span + span);
  }

  const pan = (share) => show(
    view.begin + share * (view.end - view.begin), view.end + share * (view.end - view.begin));
  const showAll = () => show(0, 1);

  function follow(mark) {
    const begin = mark[0] / picture.ticks, end = (mark[0] + mark[1]) / picture.ticks;
    if (begin < view.begin || end > view.end) {
      const span = Math.max(view.end - view.begin, (end - begin) * 1.2), middle = (begin + end) / 2;
      show(middle - span / 2, middle + span / 2);
    }
  }

  function stepThrough(by) {
    let { row, index } = chosen || { row: 0, index: -1 };
    const marks = rows[row].marks;
    index = Math.min(Math.max(0, index + by), marks.length - 1);
    if (!marks.length) return;
    choose(row, index);
    follow(marks[index]);
  }

  function changeLane(by) {
    const row = Math.min(Math.max(0, (chosen ? chosen.row : -1) + by), rows.length - 1);
    const last = chosen && rows[chosen.row].marks[chosen.index];
    const time = last ? last[0] : view.begin * picture.ticks;
    const index = rows[row].marks.findIndex((mark) => mark[0] + mark[1] > time);
    choose(row, index < 0 ? rows[row].marks.length - 1 : index);
  }

  const KEYS = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": showAll,
    ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), ArrowUp: () => changeLane(-1),
    ArrowDown: () => changeLane(1), n: () => stepThrough(1), p: () => stepThrough(-1),
    Home: () => show(0, view.end - view.begin), End: () => show(1 - (view.end - view.begin), 1),
  };

  $("timeline").addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  for (const [id, act] of Object.entries({
    closer: () => zoom(0.5), wider: () => zoom(2), all: showAll, earlier: () => pan(-0.5), later: () => pan(0.5),
  })) $(id).addEventListener("click", act);

  canvas.addEventListener("wheel", (event) => {
    const { left } = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) / 100), toPart(event.clientX - left));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / (size.width - size.gutter));
    }
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event.clientX);
    canvas.classList.add("dragged");
    point(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return point(event);
    const before = [...fingers.values()];
    fingers.set(event.pointerId, event.clientX);
    const after = [...fingers.values()];
    const left = canvas.getBoundingClientRect().left;
    if (after.length === 1) {
      pan((before[0] - after[0]) / (size.width - size.gutter));
    } else {
      const spread = (xs) => Math.max(8, Math.abs(xs[0] - xs[1]));
      zoom(spread(before) / spread(after), toPart((after[0] + after[1]) / 2 - left));
    }
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => {
      fingers.delete(event.pointerId);
      canvas.classList.toggle("dragged", fingers.size > 0);
    });
  }

  // Chooses the mark under the pointer; of several, the one that began last, which is drawn on top.
  function point(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const row = rows.findIndex((one) => y >= one.top - 1 && y <= one.top + one.height + 1);
    if (row < 0 || x < size.gutter) return;
    const near = (1 / (size.width - size.gutter)) * (view.end - view.begin) * picture.ticks;
    const time = toPart(x) * picture.ticks, marks = rows[row].marks;
    for (let index = marks.length - 1; index >= 0; index--) {
      if (marks[index][0] - near <= time && time <= marks[index][0] + marks[index][1] + near) {
        if (!chosen || chosen.row !== row || chosen.index !== index) choose(row, index);
        return;
      }
    }
  }

  const select = $("step");
  select.addEventListener("change", () => {
    picture = data.pictures[Number(select.value)];
    chosen = null;
    $("details").textContent = "";
    layOut();
    showAll();
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  new ResizeObserver(() => { if (canvas.parentElement.clientWidth !== size.width) { layOut(); draw(); } })
    .observe(canvas.parentElement);
  select.disabled = data.pictures.length < 2;
  layOut();
  readColours();
  draw();
})();
