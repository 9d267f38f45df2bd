use super::*;

fn read_in_pieces(framing: Framing, wire: &[u8], piece: usize) -> Result<(String, bool), WireError> {
    let (mut reader, mut payload) = (BodyReader::new(framing), Vec::new());
    for part in wire.chunks(piece) {
        reader.feed(part, &mut payload)?;
    }
    Ok((String::from_utf8(payload).unwrap(), reader.is_done()))
}

#[test]
fn head_yields_status_framing_and_length() {
    let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nconnection: close\r\n\r\nbody";
    let head = parse_head(wire).unwrap().unwrap();
    assert_eq!(head, Head { status: 200, framing: Framing::Length(12), close: true, length: wire.len() - 4 });
    assert_eq!(parse_head(&wire[..30]).unwrap(), None);
    let chunked = parse_head(b"HTTP/1.1 503 x\r\ntransfer-encoding: chunked\r\n\r\n").unwrap().unwrap();
    assert_eq!((chunked.status, chunked.framing, chunked.close), (503, Framing::Chunked, false));
}

#[test]
fn body_without_framing_ends_with_the_connection() {
    let head = parse_head(b"HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap();
    assert!(head.close);
    let (mut reader, mut payload) = (BodyReader::new(head.framing), Vec::new());
    reader.feed(b"abc", &mut payload).unwrap();
    assert!(!reader.is_done());
    reader.close().unwrap();
    assert!(reader.is_done());
}

#[test]
fn broken_heads_are_refused() {
    assert!(matches!(parse_head(b"SPDY/9 huh\r\n\r\n"), Err(WireError::Head(_))));
    assert!(matches!(parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"), Err(WireError::Head(_))));
}

#[test]
fn chunks_split_at_every_byte_give_the_same_payload() {
    let wire = b"5\r\nhello\r\n1;ext=1\r\n \r\nA\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n";
    for piece in 1..=wire.len() {
        let got = read_in_pieces(Framing::Chunked, wire, piece).unwrap();
        assert_eq!(got, ("hello 0123456789".to_owned(), true), "pieces of {piece}");
    }
}

#[test]
fn length_framing_ends_on_the_byte() {
    assert_eq!(read_in_pieces(Framing::Length(4), b"abcd", 3).unwrap(), ("abcd".to_owned(), true));
    assert_eq!(read_in_pieces(Framing::Length(5), b"abcd", 3).unwrap(), ("abcd".to_owned(), false));
    assert!(BodyReader::new(Framing::Length(0)).is_done());
}

#[test]
fn broken_chunking_and_early_close_are_errors() {
    assert!(matches!(read_in_pieces(Framing::Chunked, b"zz\r\n", 2), Err(WireError::ChunkSize(_))));
    assert_eq!(read_in_pieces(Framing::Chunked, b"2\r\nabXX", 99), Err(WireError::ChunkEnd));
    let long = vec![b'1'; 1000];
    assert!(matches!(read_in_pieces(Framing::Chunked, &long, 100), Err(WireError::ChunkSize(_))));
    let (mut reader, mut payload) = (BodyReader::new(Framing::Chunked), Vec::new());
    reader.feed(b"5\r\nhel", &mut payload).unwrap();
    assert_eq!(reader.close(), Err(WireError::Truncated));
}
