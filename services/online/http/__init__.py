"""The ASGI application and what it is made of: routes, limits, answers, pages."""
