// Package page opens the pages of ruledump check in a real browser.
package page

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var (
	picture     = flag.String("picture", "", "write the picture of README into this `file`")
	screenshots = flag.String("screenshots", "", "write a picture of each page in each width and colour into this `directory`")
)

// browsers are the names of the program in Debian, Ubuntu and Fedora.
var browsers = []string{"chromium", "chromium-browser", "google-chrome"}

// chromium starts a browser for the test.
func chromium(t *testing.T) context.Context {
	t.Helper()
	at := slices.IndexFunc(browsers, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	switch {
	case testing.Short():
		t.Skip("needs a browser")
	case at < 0:
		t.Fatalf("none of %s is installed: apt-get install chromium", strings.Join(browsers, ", "))
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browsers[at]), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	do(t, ctx)
	return ctx
}

// madePages returns the directory of the pages that the tests of ruledump make.
var madePages = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "check-pages")
	if err != nil {
		return "", err
	}
	make := exec.Command("go", "test", "-vet=off", "-count=1", "./internal/ruledump/verb", "-run", "^TestCheckPage$/^of_nothing$", "-args", "-pages", dir)
	make.Dir = "../.."
	if out, err := make.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if !testing.Short() {
		if dir, err := madePages(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// call sends a command of the browser's protocol.
func call[P, R any](t *testing.T, ctx context.Context, command cdp.Command[P, R], params P) R {
	t.Helper()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// eval returns the value of an expression in the page.
func eval[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// run runs statements in the page.
func run(t *testing.T, ctx context.Context, statements string) {
	t.Helper()
	eval[int](t, ctx, "(() => {"+statements+"; return 0 })()")
}

func press(keys string) chromedp.Action[chromedp.Void] { return chromedp.KeyEvent(keys) }

// tab is a page in a tab of its own, with what it did that it should not.
type tab struct {
	ctx  context.Context
	mu   sync.Mutex
	odds []string
}

func (p *tab) odd(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.odds = append(p.odds, fmt.Sprintf(format, args...))
}

// open opens a page, in a tab that is closed with the test.
func open(t *testing.T, browser context.Context, file string, scripts bool) *tab {
	t.Helper()
	p := &tab{}
	url := "file://" + file
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithListener(func(event any) {
		switch event := event.(type) {
		case *network.EventRequestWillBeSent:
			if event.Request.URL != url {
				p.odd("requested %s", event.Request.URL)
			}
		case *runtime.EventExceptionThrown:
			p.odd("exception: %s", event.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			p.odd("console: %s %v", event.Type, event.Args)
		case *log.EventEntryAdded:
			p.odd("log: %s", event.Entry.Text)
		}
	}))
	t.Cleanup(cancel)
	p.ctx = ctx
	call(t, ctx, network.Enable, network.EnableParams{})
	call(t, ctx, log.Enable, cdp.Empty{})
	call(t, ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts})
	do(t, ctx, chromedp.Navigate(url))
	return p
}

// made opens one of the pages that ruledump made.
func made(t *testing.T, browser context.Context, name string) *tab {
	t.Helper()
	return open(t, browser, fileOf(t, name), true)
}

func fileOf(t *testing.T, name string) string {
	t.Helper()
	dir, err := madePages()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name+".html")
}

var names = []string{"broken", "hostile", "large", "works"}

// looks are the sizes and colours that a page is looked at in.
type look struct {
	width  int64
	scheme string
}

func looks() (list []look) {
	for _, width := range []int64{390, 800, 1280, 1600} {
		list = append(list, look{width, "light"}, look{width, "dark"})
	}
	return list
}

// set gives the window the size and the colours, and waits until the page is drawn.
func (l look) set(t *testing.T, ctx context.Context) {
	t.Helper()
	call(t, ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: l.width, Height: 900, DeviceScaleFactor: 1})
	call(t, ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}}})
	eval[int](t, ctx, "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
}

func TestPage(t *testing.T) {
	browser := chromium(t)
	t.Run("requests nothing and logs nothing", func(t *testing.T) {
		for _, name := range names {
			p := made(t, browser, name)
			if title := eval[string](t, p.ctx, "document.title"); !strings.Contains(title, ": ") || title == "hacked" {
				t.Errorf("%s has the title %q", name, title)
			}
			for _, odd := range p.odds {
				t.Errorf("%s: %s", name, odd)
			}
		}
	})
	t.Run("would be seen to request", func(t *testing.T) { seenToRequest(t, browser) })
	t.Run("filters while one types", func(t *testing.T) { filters(t, browser) })
	t.Run("scrolls", func(t *testing.T) { scrolls(t, browser) })
	t.Run("works with the keyboard alone", func(t *testing.T) { worksByKeyboard(t, browser) })
	t.Run("works with a pointer", func(t *testing.T) { worksByPointer(t, browser) })
	t.Run("fits in each width and colour", func(t *testing.T) { fits(t, browser) })
	t.Run("can be read in each colour", func(t *testing.T) { canBeRead(t, browser) })
	t.Run("has its findings without JavaScript", func(t *testing.T) { worksWithoutScript(t, browser) })
	t.Run("prints", func(t *testing.T) { prints(t, browser) })
	if *picture != "" {
		t.Run("picture", func(t *testing.T) {
			p := made(t, browser, "broken")
			look{1280, "light"}.set(t, p.ctx)
			p.write(t, *picture, chromedp.CaptureScreenshot())
		})
	}
}

// seenToRequest shows that a request and a break of the policy leave a trace in the tab.
func seenToRequest(t *testing.T, browser context.Context) {
	text, err := os.ReadFile(fileOf(t, "broken"))
	if err != nil {
		t.Fatal(err)
	}
	const image = `<img src="missing.png"><script>document.title = "hacked"</script></body>`
	with := strings.Replace(string(text), "</body>", image, 1)
	without := strings.Replace(with, "Content-Security-Policy", "x-none", 1)
	for name, c := range map[string]struct {
		page, want string
		hacked     bool
	}{
		"without the policy": {without, "requested file://", true},
		"with the policy":    {with, "Content Security Policy", false},
	} {
		file := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(file, []byte(c.page), 0o600); err != nil {
			t.Fatal(err)
		}
		p := open(t, browser, file, true)
		if hacked := eval[string](t, p.ctx, "document.title") == "hacked"; hacked != c.hacked || !strings.Contains(strings.Join(p.odds, "\n"), c.want) {
			t.Errorf("%s: hacked %t, %q", name, hacked, p.odds)
		}
	}
}

// filters types into the filter of 20,007 addresses and 20,006 endpoints, and counts what each keystroke draws.
func filters(t *testing.T, browser context.Context) {
	p := made(t, browser, "large")
	look{1280, "light"}.set(t, p.ctx)
	if count := eval[string](t, p.ctx, `document.querySelector("#count").textContent`); count != "20007 of 20007 addresses, 20006 of 20006 endpoints" {
		t.Fatal(count)
	}
	run(t, p.ctx, `window.drawn = 0; new MutationObserver(list => { for (const m of list) drawn += m.addedNodes.length }).observe(document.querySelector("main"), { childList: true, subtree: true })`)
	for _, key := range "/some-service-1234:" {
		run(t, p.ctx, "drawn = 0")
		do(t, p.ctx, press(string(key)))
		drawn := eval[int](t, p.ctx, "drawn")
		if key != '/' && (drawn == 0 || drawn > 160) {
			t.Errorf("%q drew %d rows and spaces", key, drawn)
		}
		if rows := eval[int](t, p.ctx, `document.querySelectorAll("tbody tr").length`); rows > 100 {
			t.Errorf("after %q there are %d rows", key, rows)
		}
	}
	if count := eval[string](t, p.ctx, `document.querySelector("#count").textContent`); count != "2 of 20007 addresses, 0 of 20006 endpoints" {
		t.Error(count)
	}
	for _, row := range eval[[]string](t, p.ctx, `[...document.querySelectorAll("#matrix tbody tr:not(.space) th")].map(th => th.title)`) {
		if !strings.Contains(row, "some-service-1234:") {
			t.Errorf("the filter leaves %q", row)
		}
	}
	do(t, p.ctx, press(kb.Escape))
	if count := eval[string](t, p.ctx, `document.querySelector("#count").textContent`); !strings.HasPrefix(count, "20007 of") {
		t.Errorf("Esc leaves %s", count)
	}
	do(t, p.ctx, chromedp.Click(chromedp.CSS("#hit")))
	if count := eval[string](t, p.ctx, `document.querySelector("#count").textContent`); count != "4 of 20007 addresses, 4 of 20006 endpoints" {
		t.Errorf("only what a finding hits: %s", count)
	}
}

// scrolls looks at the last rows, whose place depends on the height of all others.
func scrolls(t *testing.T, browser context.Context) {
	p := made(t, browser, "large")
	do(t, p.ctx, chromedp.Focus(chromedp.CSS("#matrix")), press(kb.End))
	last := eval[struct {
		Index, Rows string
		Heights     []int
		Seen        bool
	}](t, p.ctx, `(() => {
		const rows = [...document.querySelectorAll("#matrix tbody tr:not(.space)")], last = rows.at(-1).getBoundingClientRect(), box = document.querySelector(".rows").getBoundingClientRect();
		return { Index: rows.at(-1).ariaRowIndex, Rows: document.querySelector("#matrix").ariaRowCount, Heights: [...new Set(rows.map(row => row.offsetHeight))],
			Seen: last.bottom <= box.bottom + 1 && last.top > box.top };
	})()`)
	if last.Index != "20008" || last.Rows != "20008" || !last.Seen || !slices.Equal(last.Heights, []int{46}) {
		t.Errorf("%+v", last)
	}
}

// state is where the keyboard is.
type state struct {
	Focus, Cell, Dialog, Cause string
	Open, Ring, Drawing        bool
}

func stateOf(t *testing.T, ctx context.Context) state {
	t.Helper()
	return eval[state](t, ctx, `(() => {
		const at = document.activeElement, dialog = document.querySelector("dialog"), ringed = at.closest(".rows") ?? at;
		return { Focus: at.id || at.tagName, Cell: document.getElementById(at.getAttribute("aria-activedescendant"))?.ariaLabel ?? "", Open: dialog.open,
			Dialog: dialog.querySelector("h2").textContent, Cause: dialog.querySelector("#cause").textContent, Ring: getComputedStyle(ringed).outlineStyle !== "none",
			Drawing: dialog.querySelector("svg")?.getBoundingClientRect().width > 300 };
	})()`)
}

func worksByKeyboard(t *testing.T, browser context.Context) {
	p := made(t, browser, "broken")
	var order []string
	for len(order) < 40 && !slices.Contains(order, "matrix") {
		do(t, p.ctx, press(kb.Tab))
		s := stateOf(t, p.ctx)
		if !s.Ring {
			t.Errorf("%s has the focus, and nothing shows it", s.Focus)
		}
		order = append(order, s.Focus)
	}
	if !slices.Contains(order, "SUMMARY") || !slices.Contains(order, "BUTTON") || order[len(order)-1] != "matrix" || order[len(order)-3] != "filter" {
		t.Fatalf("Tab goes to %q", order)
	}
	if s := stateOf(t, p.ctx); s.Cell != "broken, finding 2" {
		t.Errorf("the table points at %+v", s)
	}
	// The worst rows come first: cart, then search, whose second client is broken too.
	do(t, p.ctx, press(kb.ArrowDown), press(kb.ArrowRight), press(kb.Enter))
	want := state{Dialog: "shop/search, 10.96.0.60:80/TCP, from pods elsewhere", Cause: "Finding 1: inet fw forward drops it (rule 1)", Open: true, Drawing: true}
	s := stateOf(t, p.ctx)
	if s.Dialog != want.Dialog || s.Cause != want.Cause || !s.Open || !s.Drawing || s.Focus == "matrix" {
		t.Errorf("Enter opens %+v", s)
	}
	if command := eval[string](t, p.ctx, `document.querySelector("#command").textContent`); command != "ruledump explain --from 10.244.2.250%eth0 --to 10.96.0.60:80/TCP" {
		t.Error(command)
	}
	do(t, p.ctx, press("/"))
	if s := stateOf(t, p.ctx); s.Focus == "filter" || !s.Open {
		t.Errorf("/ leaves the dialog: %+v", s)
	}
	do(t, p.ctx, press(kb.Escape))
	if s := stateOf(t, p.ctx); s.Open || s.Focus != "matrix" || s.Cell != "broken, finding 1" {
		t.Errorf("Esc leads to %+v", s)
	}
	do(t, p.ctx, press(kb.ArrowRight), press(kb.Enter))
	if s := stateOf(t, p.ctx); s.Cause != "works" || s.Drawing {
		t.Errorf("a cell that works opens %+v", s)
	}
	do(t, p.ctx, press(kb.Escape), press(kb.Tab))
	if s := stateOf(t, p.ctx); s.Focus != "pods" || s.Cell != "broken, finding 1" {
		t.Errorf("Tab leads to %+v", s)
	}
	do(t, p.ctx, press("/"))
	if s := stateOf(t, p.ctx); s.Focus != "filter" {
		t.Errorf("/ leads to %+v", s)
	}
	for _, odd := range p.odds {
		t.Error(odd)
	}
}

func worksByPointer(t *testing.T, browser context.Context) {
	p := made(t, browser, "broken")
	do(t, p.ctx, chromedp.Click(chromedp.CSS("#matrix td.broken")))
	if s := stateOf(t, p.ctx); !s.Open || !s.Drawing {
		t.Errorf("a click opens %+v", s)
	}
	do(t, p.ctx, chromedp.Click(chromedp.CSS("dialog .command button")))
	if got := eval[[]string](t, p.ctx, `[getSelection().toString(), document.querySelector("#command + button").textContent]`); !slices.Equal(got, []string{"ruledump explain --from 10.244.1.250 --to 10.96.0.30:80/TCP", "Copied"}) {
		t.Errorf("the button copies %q", got)
	}
	hostile := made(t, browser, "hostile")
	if eval[int](t, p.ctx, `document.querySelectorAll("#f0 button").length`) != 1 || eval[int](t, hostile.ctx, `document.querySelectorAll("#f0 button").length`) != 0 {
		t.Error("a command that a shell would read has a button to copy, or another one has none")
	}
}

// overflows tells how much wider the page is than the window.
const overflows = `Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - innerWidth`

func fits(t *testing.T, browser context.Context) {
	for _, name := range names {
		p := made(t, browser, name)
		for _, l := range looks() {
			l.set(t, p.ctx)
			if by := eval[int](t, p.ctx, overflows); by > 0 {
				t.Errorf("%s is %d pixels too wide in %v", name, by, l)
			}
			p.shoot(t, fmt.Sprintf("%s-%d-%s", name, l.width, l.scheme), chromedp.FullScreenshot(100))
			if name != "broken" {
				continue
			}
			do(t, p.ctx, chromedp.Focus(chromedp.CSS("#matrix")), press(kb.Enter))
			l.set(t, p.ctx)
			if by := eval[int](t, p.ctx, overflows); by > 0 || !eval[bool](t, p.ctx, `(box => box.width > 300 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)(document.querySelector("dialog").getBoundingClientRect())`) {
				t.Errorf("the dialog does not fit in %v", l)
			}
			p.shoot(t, fmt.Sprintf("dialog-%d-%s", l.width, l.scheme), chromedp.CaptureScreenshot())
			do(t, p.ctx, press(kb.Escape))
			run(t, p.ctx, "scrollTo(0, 0)")
		}
		run(t, p.ctx, `document.body.append(Object.assign(document.createElement("pre"), { textContent: "x".repeat(2000) }))`)
		if by := eval[int](t, p.ctx, overflows); by < 1000 {
			t.Errorf("a line of 2,000 characters makes %s %d pixels too wide", name, by)
		}
	}
}

func (p *tab) shoot(t *testing.T, name string, picture chromedp.Action[[]byte]) {
	if *screenshots != "" {
		p.write(t, filepath.Join(*screenshots, name+".png"), picture)
	}
}

func (p *tab) write(t *testing.T, file string, picture chromedp.Action[[]byte]) {
	t.Helper()
	png, err := chromedp.Run(p.ctx, picture)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// colour is sRGB, each part from 0 to 255.
type colour [3]float64

// luminance and contrast are those of WCAG 2.1.
func (c colour) luminance() float64 {
	var part [3]float64
	for i, v := range c {
		if v /= 255; v <= 0.04045 {
			part[i] = v / 12.92
		} else {
			part[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*part[0] + 0.7152*part[1] + 0.0722*part[2]
}

func contrast(a, b colour) float64 {
	la, lb := a.luminance(), b.luminance()
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func TestContrast(t *testing.T) {
	for _, c := range []struct {
		a, b colour
		want float64
	}{{colour{0, 0, 0}, colour{255, 255, 255}, 21}, {colour{118, 118, 118}, colour{255, 255, 255}, 4.54}, {colour{255, 0, 0}, colour{255, 0, 0}, 1}} {
		if got := contrast(c.a, c.b); math.Abs(got-c.want) > 0.01 {
			t.Errorf("contrast of %v and %v is %.2f, want %.2f", c.a, c.b, got, c.want)
		}
	}
}

// texts has each text that can be seen, with its colour and that of the ground below it.
const texts = `(() => {
	const numbers = colour => colour.match(/[\d.]+/g).map(Number), found = [];
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const text = walker.currentNode.textContent.trim(), of = walker.currentNode.parentElement;
		if (!text || of.closest("script, svg, noscript") || !of.checkVisibility() || !of.offsetWidth) continue;
		let ground = of;
		while (ground && numbers(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
		found.push({ Text: text.slice(0, 40), Colour: numbers(getComputedStyle(of).color).slice(0, 3), Ground: numbers(getComputedStyle(ground).backgroundColor).slice(0, 3) });
	}
	return JSON.stringify(found);
})()`

func canBeRead(t *testing.T, browser context.Context) {
	type shown struct {
		Text           string
		Colour, Ground colour
	}
	lookAt := func(t *testing.T, p *tab) (poor []string, red, all int) {
		var list []shown
		if err := json.Unmarshal([]byte(eval[string](t, p.ctx, texts)), &list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if ratio := contrast(s.Colour, s.Ground); ratio < 4.5 {
				poor = append(poor, fmt.Sprintf("%q: %v on %v is %.2f", s.Text, s.Colour, s.Ground, ratio))
			}
			if strings.HasPrefix(s.Text, "✕") {
				red++
			}
		}
		return poor, red, len(list)
	}
	p := made(t, browser, "broken")
	for _, scheme := range []string{"light", "dark"} {
		for _, open := range []bool{false, true} {
			look{1280, scheme}.set(t, p.ctx)
			if open {
				do(t, p.ctx, chromedp.Focus(chromedp.CSS("#matrix")), press(kb.Enter))
			}
			poor, red, all := lookAt(t, p)
			for _, text := range poor {
				t.Errorf("%s: %s", scheme, text)
			}
			if red < 5 || all < 80 {
				t.Errorf("%s: looked at %d texts, %d of cells that are broken", scheme, all, red)
			}
			do(t, p.ctx, press(kb.Escape))
		}
		// The ring of the focus and the border of the filter need 3.
		for _, name := range []string{"--accent", "--dim"} {
			for _, ground := range []string{"--paper", "--ground"} {
				if ratio := contrast(variable(t, p.ctx, name), variable(t, p.ctx, ground)); ratio < 3 {
					t.Errorf("%s: %s on %s is %.2f", scheme, name, ground, ratio)
				}
			}
		}
	}
	run(t, p.ctx, `document.querySelector("h1").style.color = "#777"`)
	if poor, _, _ := lookAt(t, p); len(poor) == 0 {
		t.Error("a grey heading is not noticed")
	}
}

// variable returns the colour of a CSS variable.
func variable(t *testing.T, ctx context.Context, name string) colour {
	return eval[colour](t, ctx, fmt.Sprintf(`(() => {
		const probe = document.body.appendChild(document.createElement("i"));
		probe.style.color = "var(%s)";
		const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number).slice(0, 3);
		probe.remove();
		return parts;
	})()`, name))
}

func worksWithoutScript(t *testing.T, browser context.Context) {
	p := open(t, browser, fileOf(t, "broken"), false)
	text := eval[string](t, p.ctx, "document.body.innerText")
	for _, want := range []string{"inet fw forward drops it (rule 1)", "shop/search", "ruledump explain --from 10.244.1.250 --to 10.96.0.60:80", "The tables need JavaScript"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	do(t, p.ctx, chromedp.Click(chromedp.CSS("summary.way")))
	if !eval[bool](t, p.ctx, `document.querySelector("details:has(> .way)").open && document.querySelector("svg").getBoundingClientRect().width > 300`) {
		t.Error("the drawing does not open")
	}
}

func prints(t *testing.T, browser context.Context) {
	p := made(t, browser, "large")
	run(t, p.ctx, `addEventListener("beforeprint", () => { window.printed = document.querySelectorAll("#matrix tbody tr:not(.space)").length })`)
	pdf := call(t, p.ctx, page.PrintToPDF, page.PrintToPDFParams{}).Data
	if *screenshots != "" {
		if err := os.WriteFile(filepath.Join(*screenshots, "large.pdf"), pdf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rows := eval[int](t, p.ctx, "window.printed")
	if after := eval[int](t, p.ctx, `document.querySelectorAll("#matrix tbody tr:not(.space)").length`); rows != 60 || after > 60 {
		t.Errorf("prints %d rows, and leaves %d", rows, after)
	}
}
