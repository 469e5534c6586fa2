package web

import (
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"

	"loadstar/docs"
)

// runbooks serves the pages to which alerts and notifications link. They contain no data of
// this server, so readers need not sign in first.
func runbooks(mux *http.ServeMux) {
	for name, text := range map[string]string{"runbooks": docs.Runbooks, "alerts": docs.Alerts} {
		page := []byte(document(text))
		mux.HandleFunc("GET /docs/"+name, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = rw.Write(page) // the reader has disconnected
		})
	}
}

// document renders a runbook's Markdown, which may contain headings, paragraphs, lists, code
// and links.
func document(text string) string {
	var b strings.Builder
	title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width, initial-scale=1\"><title>%s</title>"+
		"<link rel=stylesheet href=\"/ui/server.css\"></head><body><main>\n", html.EscapeString(title))
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.Trim(block, "\n")
		switch {
		case block == "":
		case strings.HasPrefix(block, "    "):
			fmt.Fprintf(&b, "<pre tabindex=0>%s</pre>\n", html.EscapeString(strings.ReplaceAll(block, "\n    ", "\n")))
		case strings.HasPrefix(block, "#"):
			head, rest, more := strings.Cut(block, "\n")
			words := strings.TrimLeft(head, "# ")
			level := min(strings.Count(head[:len(head)-len(words)], "#"), 3)
			fmt.Fprintf(&b, "<h%d id=%q>%s</h%d>\n", level, strings.ToLower(words), inline(words), level)
			if more {
				paragraph(&b, rest)
			}
		default:
			paragraph(&b, block)
		}
	}
	b.WriteString("</main></body></html>\n")
	return b.String()
}

// paragraph writes a paragraph, which a list may follow.
func paragraph(b *strings.Builder, text string) {
	intro, list, ok := text, "", strings.HasPrefix(text, "- ")
	if ok {
		intro, list = "", "\n"+text
	} else if i := strings.Index(text, "\n- "); i >= 0 {
		intro, list = text[:i], text[i:]
	}
	if intro != "" {
		fmt.Fprintf(b, "<p>%s</p>\n", inline(intro))
	}
	if list != "" {
		b.WriteString("<ul>\n")
		for item := range strings.SplitSeq(strings.TrimPrefix(list, "\n- "), "\n- ") {
			fmt.Fprintf(b, "<li>%s</li>\n", inline(item))
		}
		b.WriteString("</ul>\n")
	}
}

var (
	codeForm = regexp.MustCompile("`([^`]+)`")
	boldForm = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	emForm   = regexp.MustCompile(`\*([^*]+)\*`)
	linkForm = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
)

// inline renders code, emphasis and links. A link to a page that the dashboard does not serve
// becomes plain text.
func inline(text string) string {
	text = html.EscapeString(text)
	text = linkForm.ReplaceAllStringFunc(text, func(link string) string {
		m := linkForm.FindStringSubmatch(link)
		page, anchor, _ := strings.Cut(m[2], "#")
		switch {
		case strings.HasPrefix(m[2], "https://"):
			return fmt.Sprintf("<a href=%q>%s</a>", m[2], m[1])
		case page == "runbooks.md" || page == "alerts.md" || page == "":
			to := strings.TrimSuffix(page, ".md")
			if to != "" {
				to = "/docs/" + to
			}
			if anchor != "" {
				to += "#" + anchor
			}
			return fmt.Sprintf("<a href=%q>%s</a>", to, m[1])
		}
		return m[1]
	})
	text = codeForm.ReplaceAllString(text, "<code>$1</code>")
	text = boldForm.ReplaceAllString(text, "<strong>$1</strong>")
	return emForm.ReplaceAllString(text, "<em>$1</em>")
}
