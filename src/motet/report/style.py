"""How the report looks, by day and by night."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f7f6f3; --card: #fff; --ink: #1d1c1a; --soft: #6d6a64; --line: #e4e1da; --tint: #f1efe9;
  --good: #1a7f4e; --poor: #b3372b; --fair: #8a6100;
  --good-tint: #dff3e7; --poor-tint: #fbe4e0; --fair-tint: #fbefcf;
  --s0: #2b66d9; --s1: #d9622b; --s2: #16906a; --s3: #a3409a;
  --s4: #a97e00; --s5: #6a57cf; --s6: #008a99; --s7: #7a7670;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #161719; --card: #1f2124; --ink: #e9e7e3; --soft: #9c9992; --line: #34363a; --tint: #292b2f;
    --good: #66d19b; --poor: #ff8f80; --fair: #e8bd55;
    --good-tint: #173a29; --poor-tint: #4a1f1b; --fair-tint: #40330f;
    --s0: #7aa5ff; --s1: #ff9562; --s2: #4fcb9f; --s3: #e082d6;
    --s4: #e0b53c; --s5: #a899ff; --s6: #45c6d4; --s7: #a6a29b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 40px clamp(14px, 3vw, 28px) 80px; max-width: 1240px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { margin: 0; font-size: 15px; font-weight: 600; }
h1 span { color: var(--soft); font-weight: 400; }
h2 { margin: 48px 0 14px; font-size: 20px; letter-spacing: -.01em; }
output, table, .facts, svg text { font-variant-numeric: tabular-nums; }
small, footer, .note { color: var(--soft); font-size: 12.5px; }
summary { margin: 16px 0; color: var(--soft); cursor: pointer; }
.chart, .table, .group, .config {
  margin: 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.up { color: var(--good); }
.down { color: var(--poor); }

/* head */
.verdict { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 .4em; margin: 18px 0 0; }
.verdict { font-size: clamp(30px, 5vw, 46px); line-height: 1.2; font-weight: 650; letter-spacing: -.025em; }
.verdict > small { flex-basis: 100%; font-size: 14px; }
.verdict small { display: block; font-weight: 400; letter-spacing: 0; }
.verdict i { color: var(--soft); font-style: normal; font-weight: 300; }
.verdict output { font-size: .5em; letter-spacing: -.01em; }
.facts { display: flex; flex-wrap: wrap; gap: 12px 34px; margin: 26px 0 0; padding: 16px 0; }
.facts { border: solid var(--line); border-width: 1px 0; }
.facts dt { color: var(--soft); font-size: 12.5px; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.alarms { list-style: none; margin: 20px 0 0; padding: 0; }
.alarms li { margin-top: 6px; padding: 9px 14px; border-radius: 4px; }
.alarms li { border-left: 4px solid var(--poor); background: var(--poor-tint); }
.alarms b { margin-right: .6em; color: var(--poor); }

/* curves */
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 14px; }
figcaption { display: flex; justify-content: space-between; gap: 10px; margin-bottom: 8px; font-size: 14px; }
svg { display: block; width: 100%; overflow: visible; }
svg text { font-size: 10.5px; fill: var(--soft); }
.grid { stroke: var(--line); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
polyline { fill: none; stroke: var(--c); stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round; }
.band { fill: var(--c); opacity: .15; }
circle { fill: var(--c); stroke: transparent; stroke-width: 9; pointer-events: all; }
.spot { fill: transparent; }
.spot:hover { fill: var(--c); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; margin: 6px 0 0; padding: 0; }
.legend { color: var(--soft); font-size: 12.5px; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 3px; }
.legend i { background: var(--c); }
.legend output { color: var(--ink); }

/* tables */
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 14px; }
.tables { align-items: start; }
.table { padding: 8px; overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 6px 8px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-size: 12.5px; font-weight: 400; }
td { border-top: 1px solid var(--line); }
.spark { width: 120px; margin-left: auto; }
.spark circle { stroke-width: 6; }

/* groups */
.groups { columns: 2 440px; column-gap: 14px; }
.group { break-inside: avoid; margin-bottom: 14px; }
.group header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 10px; font-size: 13px; }
.group header span { padding: 0 8px; border-radius: 99px; background: var(--tint); color: var(--soft); }
.group header output { margin-left: auto; color: var(--soft); }
.message { margin-top: 12px; }
.message small { display: block; }
.message p { margin: 8px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
img, video { max-width: 100%; margin: 0 6px 6px 0; object-fit: contain; vertical-align: top; }
img { height: 168px; }
video { height: 220px; }  /* the controls cover a strip of it */
img, video { border-radius: 6px; background: var(--tint); }
audio { display: block; width: 100%; max-width: 340px; height: 40px; margin-bottom: 6px; }
.options { display: flex; flex-wrap: wrap; gap: 6px; list-style: none; margin: 10px 0; padding: 0; font-size: 14px; }
.options li, mark { padding: 1px 10px; border: 1px solid var(--line); border-radius: 99px; }
.options .right, mark { border-color: var(--good); background: var(--good-tint); color: var(--good); }
.options .right::after { content: " ✓"; }
.group ol { list-style: none; margin: 12px 0; padding: 0; }
.group ol li { display: flex; align-items: baseline; gap: 10px; padding: 5px 0; border-top: 1px solid var(--line); }
.group ol output { flex: none; min-width: 44px; padding: 0 8px; border-radius: 5px; text-align: center; }
.group ol output { font-size: 13px; }
.group ol div { flex: 1; min-width: 0; display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 14px; }
.group ol small { margin-left: auto; }
.good { background: var(--good-tint); color: var(--good); }
.poor { background: var(--poor-tint); color: var(--poor); }
.fair { background: var(--fair-tint); color: var(--fair); }
.times { flex: none; color: var(--soft); font-size: 13px; }
pre { max-height: 16em; margin: 0; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { font: 13.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre.config { max-height: none; }
"""
