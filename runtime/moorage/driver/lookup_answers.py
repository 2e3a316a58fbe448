"""Look-ups in queryable state over HTTP: what is asked, and which status each failure has.

Called by the endpoint of a driver on a cluster and by the page of a run on this machine, which have
let in who asks.
"""

import asyncio

from aiohttp import web

from moorage.driver.lookup_requests import MOST_BYTES, LookupRequest, from_json, from_query
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import TooManyRequests
from moorage.http_server import Refused, body_of
from moorage_state.errors import MoorageError, Retryable, UserError

_LOOKUP_SECONDS = 12.0
"""For a look-up that its own patience does not end, such as one that waits to be connected."""


async def look_up(lookups: StateLookups, name: str, request: web.BaseRequest) -> web.Response:
    """Read state, in another thread: the loop has others to answer meanwhile.

    Raises:
        Refused: there is no answer, for the reason that it gives.
    """
    try:
        asked = await _asked(name, request)
        future = asyncio.wrap_future(lookups.submit(asked))
        async with asyncio.timeout(_LOOKUP_SECONDS):
            answer = await future
        return web.Response(body=answer, content_type="application/json")
    except TooManyRequests as error:
        raise Refused(429, error.code, str(error), **{"Retry-After": "1"}) from error
    except Retryable as error:
        raise Refused(503, error.code, str(error), **{"Retry-After": "1"}) from error
    except TimeoutError as error:
        message = f"state servers do not answer: queryable={name:.80}; ask again in a while"
        raise Refused(503, "state_moving", message, **{"Retry-After": "5"}) from error
    except UserError as error:
        status = 404 if error.code == "unknown_state" else 400
        raise Refused(status, error.code, str(error)) from error
    except MoorageError as error:
        raise Refused(500, error.code, str(error)) from error


async def _asked(name: str, request: web.BaseRequest) -> LookupRequest:
    if request.method == "GET":
        return from_query(name, request.rel_url.query.items())
    return from_json(name, await body_of(request, MOST_BYTES))
