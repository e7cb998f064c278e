// The robot moving along one trajectory: reference dashed, path solid, the arm where its parts are known.
// Everything moves in the browser; the server sends a trajectory once.
const NICE = [1, 2, 5, 10];

function step(span, count) {
  const rough = span / count;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  return NICE.map((n) => n * power).find((s) => s >= rough) ?? 10 * power;
}

export default {
  template: `
    <div class="motion">
      <svg ref="svg" :viewBox="'0 0 ' + width + ' ' + height" :style="{height: height + 'px'}" role="img"
           aria-label="The robot along the trajectory">
        <g class="motion-grid">
          <template v-for="t in ticks.x">
            <line :x1="t.at" :x2="t.at" :y1="box.top" :y2="box.bottom" />
            <text :x="t.at" :y="box.bottom + 14" text-anchor="middle">{{ t.text }}</text>
          </template>
          <template v-for="t in ticks.y">
            <line :x1="box.left" :x2="box.right" :y1="t.at" :y2="t.at" />
            <text :x="box.left - 5" :y="t.at + 4" text-anchor="end">{{ t.text }}</text>
          </template>
          <text :x="box.right" :y="height - 3" text-anchor="end">{{ data ? data.labels[0] : "" }}</text>
          <text :x="2" :y="11">{{ data ? data.labels[1] : "" }}</text>
        </g>
        <template v-if="data">
          <path class="motion-reference" :d="still.reference" />
          <path class="motion-ahead" :d="still.actual" />
          <path class="motion-actual" :d="path(data.actual.slice(0, at + 1))" />
          <g v-if="data.body" class="motion-body">
            <polyline :points="line(data.body[at])" />
            <circle v-for="p in data.body[at]" :cx="sx(p[0])" :cy="sy(p[1])" r="4.5" />
          </g>
          <circle class="motion-goal" :cx="sx(data.reference[at][0])" :cy="sy(data.reference[at][1])" r="6" />
          <circle class="motion-tip" :cx="sx(data.actual[at][0])" :cy="sy(data.actual[at][1])" r="5" />
        </template>
        <text v-else class="motion-empty" :x="width / 2" :y="height / 2" text-anchor="middle">no trajectory yet</text>
      </svg>
      <div class="motion-bar">
        <button type="button" class="motion-play" :disabled="!data" @click="toggle"
                :aria-label="playing ? 'pause the drawing' : 'play the drawing'">{{ playing ? "❚❚" : "▶" }}</button>
        <input type="range" min="0" :max="last" v-model.number="at" :disabled="!data" @input="playing = false"
               aria-label="time in the trajectory" />
        <span class="motion-time">{{ data ? (at * data.period).toFixed(1) : "–" }} s</span>
      </div>
    </div>`,
  props: { data: Object },
  data() {
    return { width: 480, height: 340, at: 0, playing: true, clock: null };
  },
  computed: {
    last() {
      return this.data ? this.data.actual.length - 1 : 0;
    },
    still() {
      return { reference: this.path(this.data.reference), actual: this.path(this.data.actual) };
    },
    box() {
      return { left: 40, right: this.width - 10, top: 18, bottom: this.height - 30 };
    },
    view() {
      const all = this.data
        ? [...this.data.reference, ...this.data.actual, ...(this.data.body ?? []).flat()]
        : [[0, 0], [1, 1]];
      const range = (i) => [Math.min(...all.map((p) => p[i])), Math.max(...all.map((p) => p[i]))];
      let [[x0, x1], [y0, y1]] = [range(0), range(1)];
      const pad = (a, b) => [a - 0.06 * (b - a || 1), b + 0.06 * (b - a || 1)];
      [[x0, x1], [y0, y1]] = [pad(x0, x1), pad(y0, y1)];
      let kx = (this.box.right - this.box.left) / (x1 - x0);
      let ky = (this.box.bottom - this.box.top) / (y1 - y0);
      if (this.data && this.data.equal) {
        kx = ky = Math.min(kx, ky);
        const [mx, my] = [(x0 + x1) / 2, (y0 + y1) / 2];
        const [hx, hy] = [(this.box.right - this.box.left) / kx / 2, (this.box.bottom - this.box.top) / ky / 2];
        [x0, x1, y0, y1] = [mx - hx, mx + hx, my - hy, my + hy];
      }
      return { x0, x1, y0, y1, kx, ky };
    },
    ticks() {
      const { x0, x1, y0, y1 } = this.view;
      const along = (low, high, count, scale) => {
        const size = step(high - low, count);
        const digits = Math.max(0, -Math.floor(Math.log10(size) + 1e-9));
        const found = [];
        for (let k = Math.ceil(low / size); k * size <= high; k++)
          found.push({ at: scale(k * size), text: (k * size).toFixed(digits) });
        return found;
      };
      return { x: along(x0, x1, this.width < 420 ? 5 : 7, this.sx), y: along(y0, y1, 6, this.sy) };
    },
  },
  methods: {
    sx(x) {
      return this.box.left + (x - this.view.x0) * this.view.kx;
    },
    sy(y) {
      return this.box.bottom - (y - this.view.y0) * this.view.ky;
    },
    line(points) {
      return points.map((p) => this.sx(p[0]).toFixed(1) + "," + this.sy(p[1]).toFixed(1)).join(" ");
    },
    path(points) {
      return points.length ? "M" + this.line(points).replaceAll(" ", "L") : "";
    },
    toggle() {
      if (!this.playing && this.at >= this.last) this.at = 0;
      this.playing = !this.playing;
    },
    tick() {
      if (!this.playing || !this.data) return;
      const now = performance.now();
      this.due = (this.due ?? 0) + (now - (this.before ?? now)) / 1000;
      this.before = now;
      const steps = Math.floor(this.due / this.data.period);
      if (steps < 1) return;
      this.due -= steps * this.data.period;
      this.at = this.at + steps > this.last + 25 ? 0 : Math.min(this.at + steps, this.last);
      if (this.at >= this.last) {
        this.rest = (this.rest ?? 0) + steps;
        if (this.rest > 25) [this.at, this.rest] = [0, 0];
      }
    },
  },
  watch: {
    data(now, before) {
      if (!now || !before || now.key !== before.key) this.at = 0;
      this.at = Math.min(this.at, this.last);
    },
    playing() {
      this.before = undefined;
    },
  },
  mounted() {
    this.clock = setInterval(() => this.tick(), 40);
    this.observer = new ResizeObserver(() => {
      this.width = Math.max(this.$el.clientWidth, 200);
      this.height = Math.round(Math.min(Math.max(0.68 * this.width, 220), 420));
    });
    this.observer.observe(this.$el);
  },
  unmounted() {
    clearInterval(this.clock);
    this.observer.disconnect();
  },
};
