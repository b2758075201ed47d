package fields

import (
	"bytes"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxWalk bounds how deep contents are searched for media; what is deeper counts as remote media, of which nothing is
// known.
const maxWalk = 32

// MediaOf says what media the value at s, a conversation or a part of one, holds.
func MediaOf(b []byte, s scheduling.Span) Media { return mediaWithin(b, s, 0) }

func mediaWithin(b []byte, s scheduling.Span, depth int) Media {
	found := MediaNone
	if depth > maxWalk {
		return MediaRemote
	}
	switch at(b, s.Start) {
	case '{':
		eachField(b, s, func(name []byte, value scheduling.Span) {
			switch string(name) {
			case "image_url", "image", "image_embeds", "video_url", "video", "audio_url", "input_audio", "audio",
				"audio_embeds", "file", "file_data", "file_id", "file_url", "source":
				found = max(found, whereIs(b, value, string(name) == "file_id"))
			case "content", "output", "input":
				found = max(found, mediaWithin(b, value, depth+1))
			default:
				if bytes.IndexByte(name, '\\') >= 0 { // it may be any of them
					found = MediaRemote
				}
			}
		})
	case '[':
		i := space(b, s.Start+1)
		for i < s.End && b[i] != ']' {
			end := valueEnd(b, i)
			if end <= i {
				break
			}
			found = max(found, mediaWithin(b, scheduling.Span{Start: i, End: end}, depth+1))
			if i = space(b, end); at(b, i) == ',' {
				i = space(b, i+1)
			}
		}
	}
	return found
}

// whereIs says where a media value's bytes are: any string in it that reads like a URL, other than a data URL, is remote.
func whereIs(b []byte, s scheduling.Span, id bool) Media {
	if b[s.Start] == 'n' {
		return MediaNone
	}
	if id {
		return MediaRemote
	}
	for i := s.Start; i < s.End; {
		if b[i] != '"' {
			i++
			continue
		}
		end := stringEnd(b, i+1)
		if end < 0 {
			break
		}
		content := b[i+1 : end]
		head := content[:min(len(content), 16)]
		if !bytes.HasPrefix(head, []byte("data:")) && (bytes.Contains(head, []byte(":")) || bytes.Contains(head, []byte(`\`))) ||
			string(content) == "file_id" {
			return MediaRemote
		}
		i = end + 1
	}
	return MediaInline
}
