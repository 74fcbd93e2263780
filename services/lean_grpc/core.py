"""The HTTP/2 core of a connection: h2, with the limits that it enforces and tells clients of."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from services.lean_grpc.head import HEADERS, OK_TRAILERS
from services.lean_grpc.hpack import ConstantEncoder, RememberingDecoder

WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
MAX_STREAMS = 1024
# Above what is told: a client may begin before it has heard of the limit.
_TAKEN_STREAMS = 8 * MAX_STREAMS
MAX_HEADER_BYTES = 16 << 10
MAX_FRAME_BYTES = 64 << 10
_DEFAULT_WINDOW = 65535
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,  # `parse_head` does
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


def make_core() -> H2Connection:
    """The server's side of a new connection, with its first frames to send."""
    core = H2Connection(_CONFIG)
    core.decoder = RememberingDecoder(MAX_HEADER_BYTES)
    core.encoder = ConstantEncoder((HEADERS, OK_TRAILERS))
    core.local_settings = _settings(MAX_STREAMS)
    core.max_inbound_frame_size = MAX_FRAME_BYTES
    core.initiate_connection()
    core.local_settings = _settings(_TAKEN_STREAMS)
    core.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW)
    return core


def _settings(streams: int) -> Settings:
    values = {
        SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
        SettingCodes.MAX_CONCURRENT_STREAMS: streams,
        SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
    }
    return Settings(client=False, initial_values=values)
