"use strict";
// Shows the snapshots that /events sends. All text from workers goes through textContent, so it is never markup.
const find = (id) => document.getElementById(id);
const text = (id, words) => { if (find(id).textContent !== words) find(id).textContent = words; };

// Numbers are formatted as on the terminal: see units.py.
const short = (number) => number >= 10 ? number.toFixed(0) : String(+number.toPrecision(2));
const share = (part) => `${Math.round(100 * part)} %`;
const rate = (perSecond) => {
  for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]])
    if (perSecond >= 0.9995 * size) return `${short(perSecond / size)} ${unit}`;
  return `${short(perSecond)} B/s`;
};
const speed = (perSecond) =>
  perSecond > 0 && perSecond < 0.1 ? `${short(1 / perSecond)} s/step` : `${short(perSecond)} steps/s`;
const ms = (number) => number >= 10000 ? `${short(number / 1000)} s` : `${short(+number.toFixed(3))} ms`;
const time = (seconds) => {
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
};
const ofLink = (perSecond, report) =>
  report.link_bytes_per_s ? `${rate(perSecond)} (${share(perSecond / report.link_bytes_per_s)})` : rate(perSecond);

function drawSpark(id, values, words) {
  const most = Math.max(...values, 1e-9);
  const span = Math.max(values.length, 30) - 1; // the line grows to the right until it fills the box, then is squeezed
  const points = values.map((value, place) => `${(120 * place / span).toFixed(1)},${(27 - 26 * value / most).toFixed(1)}`);
  find(id).firstElementChild.setAttribute("points", points.join(" "));
  find(id).setAttribute("aria-label", words);
}

const NUMBER = "", WORD = "word";
function listCells(row) {
  const start = [[row.rank, NUMBER], [row.host, WORD], [row.state, WORD]];
  const report = row.pulse;
  if (!report) return start.concat(Array(7).fill(["-", NUMBER]));
  return start.concat([
    [report.steps || "-", NUMBER],
    [share(report.wait_share), NUMBER],
    [report.wait_share >= 0.01 ? report.waits_for : "", WORD],
    [report.layer, WORD],
    [report.layer ? short(report.layer_ms_per_step) : "", NUMBER],
    [ofLink(report.out_bytes_per_s, report), NUMBER],
    [ofLink(report.in_bytes_per_s, report), NUMBER],
  ]);
}

function drawRow(line, row) {
  line.className = row.is_alarming ? "alarming" : row.is_up ? "" : "over";
  const cells = listCells(row);
  while (line.cells.length < cells.length) line.insertCell();
  cells.forEach(([words, kind], place) => {
    const cell = line.cells[place];
    cell.className = kind;
    if (cell.textContent !== String(words)) cell.textContent = words;
    if (kind === WORD) cell.title = words;
  });
}

function drawLines(lines) {
  const box = find("lines"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  find("output").hidden = !lines.length;
  text("lines", lines.join("\n"));
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function draw(job) {
  const ranks = job.world_size === 1 ? "1 rank" : `${job.world_size} ranks`;
  const reporting = job.heard < job.world_size ? `, ${job.heard} reporting` : "";
  document.title = `${job.script}: ${job.verdict || (job.steps ? `step ${job.steps}` : "starting")}`;
  text("script", job.script);
  text("about", `${time(job.elapsed_s)}, ${ranks}${reporting}`);
  text("steps", job.steps ? String(job.steps) : "-");
  text("speed", job.steps ? speed(job.steps_per_s) : "no step seen yet");
  text("waits", job.heard ? share(job.wait_share) : "-");
  const turn = job.turn_share >= 0.01 ? `, ${share(job.turn_share)} other job's turn` : "";
  text("waits-for", (job.waits_for && job.wait_share >= 0.01 ? `most for ${job.waits_for}` : "") + turn);
  text("out", job.heard ? `${rate(job.out_bytes_per_s)} out` : "-");
  text("in", job.heard ? `${rate(job.in_bytes_per_s)} in` : "");
  text("layer", job.layer ? ms(job.layer_ms_per_step) : "-");
  text("layer-name", job.layer ? `${job.layer}, forward and backward` : "");
  drawSpark("speeds", job.history.map((point) => point[0]), `steps per second, the last two minutes: now ${speed(job.steps_per_s)}`);
  drawSpark("shares", job.history.map((point) => point[1]), `share of waits, the last two minutes: now ${share(job.wait_share)}`);
  const body = find("ranks");
  while (body.rows.length > job.rows.length) body.deleteRow(-1);
  while (body.rows.length < job.rows.length) body.insertRow();
  job.rows.forEach((row, place) => drawRow(body.rows[place], row));
  drawLines(job.lines);
}

function showLink(state, words) {
  const link = find("link");
  link.dataset.state = state;
  text("link", words);
  document.body.classList.toggle("stale", state === "lost");
}

// The browser reconnects on its own, unless the job has ended.
const events = new EventSource("/events");
events.onmessage = (event) => {
  const job = JSON.parse(event.data);
  draw(job);
  if (!job.verdict) return showLink("live", "live");
  events.close();
  showLink(job.verdict === "done" ? "ended" : "failed", `the job has ended: ${job.verdict}`);
};
events.onerror = () => {
  showLink("lost", "connection lost, reconnecting");
  // A browser gives up if another program responds on the launcher's port.
  if (events.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
};
